"""The line that shows what pip is doing: what it reads off pip's output, and when it speaks."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "pip_progress.py"


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("pip_progress", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


progress = _load()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("  [87/193] /usr/bin/g++ -DGGML_BUILD -o ggml.o", "compiling llama.cpp  [87/193]"),
        ("  [ 45%] Building CXX object src/llama.cpp.o", "compiling llama.cpp  [45/100]"),
        ("Collecting numpy>=1.26 (from barrel-inference)", "fetching numpy"),
        ("  Building wheel for llama-cpp-python (pyproject.toml): started", "compiling llama.cpp"),
        ("  Building editable for barrel-inference (pyproject.toml): started", "building barrel-inference"),
        ("Installing collected packages: xxhash, typer", "installing"),
    ],
)
def test_a_stage_is_read_off_its_line(line: str, shown: str) -> None:
    assert str(progress.parse(line)) == shown


@pytest.mark.parametrize(
    "line", ["", "  -- Installing: lib/libllama.so", "  changing mode of x to 755", "  [warning] x"]
)
def test_other_lines_announce_nothing(line: str) -> None:
    assert progress.parse(line) is None


def _ninja(total: int) -> list[str]:
    return [f"  [{step}/{total}] g++ -c x.cpp\n" for step in range(1, total + 1)]


def test_without_a_terminal_the_compile_is_told_in_tenths() -> None:
    out = io.StringIO()
    progress.follow(_ninja(193), progress.Display(out, live=False, clock=lambda: 0.0), io.StringIO())
    assert len(out.getvalue().splitlines()) == 11
    assert out.getvalue().splitlines()[-1] == "compiling llama.cpp  [193/193]  0:00"


def test_on_a_terminal_one_line_is_redrawn_with_the_time_so_far() -> None:
    out, seconds = io.StringIO(), iter([0.0, 130.0])
    display = progress.Display(out, live=True, clock=lambda: next(seconds))
    progress.follow(["  [87/193] g++\n"], display, io.StringIO())
    assert out.getvalue() == "\r\x1b[Kcompiling llama.cpp  [87/193]  2:10"


def test_the_whole_output_is_logged_and_its_end_is_kept() -> None:
    log, lines = io.StringIO(), [f"line {number}\n" for number in range(100)]
    tail = progress.follow(lines, progress.Display(io.StringIO(), live=False), log)
    assert log.getvalue() == "".join(lines)
    assert list(tail) == lines[-progress.TAIL_LINES :]
