"""What holds the tree together and no other tool checks."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(file for file in (ROOT / "variants").glob("*.py") if not file.stem.startswith("_"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_variant_stands_alone(file):
    imported = {
        name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if node.module == "variants" else [node.module or ""])
        if node.module == "variants" or name.startswith("variants.")
    }
    assert all(name.removeprefix("variants.").startswith("_") for name in imported), imported


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["report", "--help"], ["list", "--help"]])
def test_help_starts_without_torch(arguments):
    code = f"""
import sys
from bench.cli import main
try:
    main({arguments!r})
except SystemExit as end:
    assert end.code == 0, end.code
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
