"""Results as Markdown and CSV, each with the machine, the commit and the command that made it. Owns nothing."""

from __future__ import annotations

import csv
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

RESULTS = Path(__file__).parent / "results"


@dataclass
class Table:
    """``rows``: one dict per line, the same keys in each. ``reading``: what to conclude, in sentences made of the
    numbers."""

    name: str  # of the file
    question: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    reading: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Spread:
    """Several measurements of one thing; shown as their median, with the smallest and the largest."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        if len(self.values) == 1:
            return number(self.values[0])
        return f"{number(self.median)} ({number(min(self.values))} … {number(max(self.values))})"


def spread(values: Sequence[float]) -> Spread:
    return Spread(tuple(values))


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = 2 if abs(value) >= 1 else 4
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if abs(value) >= 100 else text


def cell(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)


def machine_line() -> str:
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{_cpu()}, {psutil.cpu_count(logical=False)} cores, {memory:.0f} GiB, {platform.system()}, "
        f"Python {platform.python_version()}, llama-cpp-python {version('llama-cpp-python')}"
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def commit() -> str:
    """Short hash, with ``+`` when the tree differs from it."""
    try:
        short = _git("rev-parse", "--short", "HEAD")
        return short + ("+" if _git("status", "--porcelain", "--untracked-files=no", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, cwd=RESULTS.parent)
    return done.stdout.strip()


def markdown(table: Table, command: str) -> str:
    columns = list(table.rows[0]) if table.rows else []
    lines = [f"# {table.question}", "", *(f"- {sentence}" for sentence in table.reading), ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(row[column]) for column in columns) + " |" for row in table.rows]
    lines += ["", f"`{command}` at {commit()} on {machine_line()}. Figures are medians (smallest … largest).", ""]
    return "\n".join(lines)


def save(table: Table, folder: Path = RESULTS) -> str:
    """Write both files; the Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown(table, " ".join(["python -m benchmarks", *sys.argv[1:]]))
    (folder / f"{table.name}.md").write_text(text, encoding="utf-8")
    with (folder / f"{table.name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        columns = list(table.rows[0]) if table.rows else []
        writer.writerow(columns)
        writer.writerows([_plain(row[column]) for column in columns] for row in table.rows)
    return text


def _plain(value: Any) -> Any:
    """Every measurement in a CSV cell, so that nothing is lost to the median."""
    return " ".join(f"{one:.6g}" for one in value.values) if isinstance(value, Spread) else value
