"""Work trees: a revision as it was committed, no hooks, and nothing left."""

from __future__ import annotations

import subprocess

import pytest

from bench.ab import sides
from bench.ab.trees import Tree, checked_out
from bench.errors import WrongUsageError


def git(folder, *arguments):
    command = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    for text in ("old", "new"):
        (root / "mine.py").write_text(text)
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", text)
    return root


def test_revisions_lie_side_by_side_and_are_gone_afterwards(repository):
    (repository / "mine.py").write_text("not committed")
    with checked_out(repository, "main~1", "main") as (old, new):
        assert [(tree.root / "mine.py").read_text() for tree in (old, new)] == ["old", "new"]
        assert [tree.revision for tree in (old, new)] == [
            git(repository, "rev-parse", name) for name in ("main~1", "main")
        ]
        assert len(git(repository, "worktree", "list").splitlines()) == 3
        folder = old.folder.parent
    assert not folder.exists()
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    assert (repository / "mine.py").read_text() == "not committed"


def test_an_error_within_leaves_nothing_either(repository):
    with pytest.raises(ZeroDivisionError), checked_out(repository, "main") as (tree,):
        raise ZeroDivisionError
    assert not tree.root.exists()


def test_hooks_do_not_run(repository, tmp_path):
    hook = repository / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    with checked_out(repository, "main"):
        pass
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["absent", "--help", "", "main:mine.py"])
def test_what_is_no_revision_is_refused(repository, name):
    with pytest.raises(WrongUsageError, match="expected a revision of"), checked_out(repository, name):
        pass


def test_what_is_no_repository_is_refused(tmp_path):
    with pytest.raises(WrongUsageError, match="expected a git repository"), checked_out(tmp_path, "main"):
        pass


# --- sides ----------------------------------------------------------------------------------------------------


def tree_of(tmp_path, *files):
    root = tmp_path / "0/tree"
    root.mkdir(parents=True)
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("")
    return Tree("main", "c0ffee", root, tmp_path / "0")


def test_variants_come_from_the_revision_and_the_harness_from_here(tmp_path):
    tree = tree_of(tmp_path, "variants/_contract.py", "bench/__init__.py", "src/x.py")
    side = sides.side_of(tree, "head", variant_files=[], install=False)
    links, *rest = side.home.folders
    assert (links / "variants").resolve() == (tree.root / "variants").resolve()
    assert (links / "bench").resolve() == (sides._CODE / "bench").resolve()
    assert rest == [tree.root / "src", tree.root]
    assert side.home.environment["PYTHONSAFEPATH"] == "1"


def test_a_repository_of_variant_files_alone_gets_our_variants(tmp_path):
    side = sides.side_of(tree_of(tmp_path, "mine.py"), "base", variant_files=["mine.py", "later.py"], install=False)
    assert (side.home.folders[0] / "variants").resolve() == (sides._CODE / "variants").resolve()
    assert side.variant_files == (str(tmp_path / "0/tree/mine.py"),)


def test_an_installed_side_has_a_python_of_its_own(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(sides, "_run", lambda command, failing: ran.append(list(command)))
    side = sides.side_of(tree_of(tmp_path, "mine.py"), "base", variant_files=[], install=True)
    folder = tmp_path / "0/environment"
    assert side.home.python.startswith(str(folder))
    assert ran[0][1:] == ["-m", "venv", str(folder)]
    assert any(word.startswith("torch") for word in ran[1])
    assert not any(word.startswith("pytest") for word in ran[1])
    assert ran[2][-1] == str(tmp_path / "0/tree")
    assert {command[0] for command in ran[1:]} == {side.home.python}


def test_an_installation_that_fails_says_what_pip_said(tmp_path):
    with pytest.raises(WrongUsageError, match=r"--install: cannot install it: .*no such option"):
        sides._run(["python", "-m", "pip", "--absent"], "cannot install it")
