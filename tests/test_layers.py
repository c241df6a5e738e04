"""The rules of the house that tools do not check: sizes, what may be imported at once, who may load llama.cpp."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "barrel_inference"
FILES = sorted([*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 60
MAX_MEDIAN_FUNCTION_LINES = 10
MAX_FILES_A_FOLDER = 12
ONE_FILE_PER_COMMAND = SOURCE / "cli"

PARENT_SIDE = (
    "barrel_inference",
    "barrel_inference.aio",
    "barrel_inference.api",
    "barrel_inference.cli.main",
    "barrel_inference.registry",
    "barrel_inference.server",
)
HEAVY = ("llama_cpp", "numpy", "llguidance", "barrel_inference.engine")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield f"{_name(path)}:{node.lineno} {node.name}", node.end_lineno - node.lineno + 1


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_a_file_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_FILE_LINES
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "every file begins with a docstring"


def test_no_function_is_long() -> None:
    assert [(name, lines) for path in FILES for name, lines in _functions(path) if lines > MAX_FUNCTION_LINES] == []


def test_functions_are_short_as_a_rule() -> None:
    lines = [lines for path in SOURCE.rglob("*.py") for _, lines in _functions(path)]
    assert statistics.median(lines) <= MAX_MEDIAN_FUNCTION_LINES


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    folders = [SOURCE, *(path for path in SOURCE.rglob("*") if path.is_dir() and path != ONE_FILE_PER_COMMAND)]
    crowded = {
        _name(folder): len(files)
        for folder in folders
        if len(files := [path for path in folder.glob("*.py") if path.name != "__init__.py"]) > MAX_FILES_A_FOLDER
    }
    assert crowded == {}


def test_only_one_file_loads_the_binding() -> None:
    importers = {
        _name(path)
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "llama_cpp" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "llama_cpp")
    }
    assert importers == {"src/barrel_inference/engine/llama/binding.py"}


@pytest.mark.parametrize("module", PARENT_SIDE)
def test_the_parent_side_never_loads_what_belongs_to_a_worker(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_the_layers_hold() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
