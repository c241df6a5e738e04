"""Runs ``pip install`` and shows in one line what it does: compiling llama.cpp takes minutes and must not look hung.

On a terminal the line is redrawn; elsewhere a plain line appears at each new stage and every tenth of the compile.
The whole output of pip goes to ``.venv/install.log``; its end is shown when pip fails.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

_NINJA = re.compile(r"^\s*\[(\d+)/(\d+)\]")
_MAKE = re.compile(r"^\s*\[\s*(\d+)%\]")
_STAGES = (
    (re.compile(r"^(?:Collecting|Processing|Downloading) (\S+)"), "fetching {0}"),
    (re.compile(r"^\s*Building wheel for llama-cpp-python"), "compiling llama.cpp"),
    (re.compile(r"^\s*Building (?:editable|wheel) for (\S+)"), "building {0}"),
    (re.compile(r"^Installing collected packages"), "installing"),
)
_FETCHED_NAME = re.compile(r"^[^;\[=<>!~ ]+")
TAIL_LINES = 40
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Stage:
    """What pip is doing. ``done`` of ``total`` steps when it compiles, otherwise 0 of 0."""

    name: str
    done: int = 0
    total: int = 0

    def __str__(self) -> str:
        return f"{self.name}  [{self.done}/{self.total}]" if self.total else self.name


def parse(line: str) -> Stage | None:
    """The stage that one line of ``pip --verbose`` announces; None for the thousands that announce nothing."""
    if match := _NINJA.match(line):
        return Stage("compiling llama.cpp", int(match[1]), int(match[2]))
    if match := _MAKE.match(line):
        return Stage("compiling llama.cpp", int(match[1]), 100)
    for pattern, text in _STAGES:
        if match := pattern.match(line):
            return Stage(text.format(*(_short(group) for group in match.groups())))
    return None


def _short(requirement: str) -> str:
    name = _FETCHED_NAME.match(Path(requirement).name)
    return name[0] if name else requirement


@dataclass
class Display:
    """Owns the line on the terminal. ``clock`` returns seconds."""

    out: TextIO
    live: bool
    clock: Callable[[], float] = time.monotonic
    _started: float = field(init=False)
    _shown: str = ""

    def __post_init__(self) -> None:
        self._started = self.clock()

    def show(self, stage: Stage) -> None:
        elapsed = int(self.clock() - self._started)
        text = f"{stage}  {elapsed // 60}:{elapsed % 60:02d}"
        if self.live:
            self.out.write(f"\r\x1b[K{text[:100]}")
        elif self._is_news(stage):
            self.out.write(f"{text}\n")
        self.out.flush()

    def _is_news(self, stage: Stage) -> bool:
        """Without a terminal: each stage once, the compile in tenths, single downloads not at all."""
        if stage.name.startswith("fetching"):
            return False
        step = f"{stage.name} {stage.done * 10 // stage.total if stage.total else 0}"
        is_new = step != self._shown
        self._shown = step
        return is_new

    def close(self) -> None:
        if self.live:
            self.out.write("\r\x1b[K")
            self.out.flush()


def follow(lines: Iterable[str], display: Display, log: TextIO) -> deque[str]:
    """Show every stage as it comes; returns the last lines for an error report."""
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    for line in lines:
        log.write(line)
        tail.append(line)
        if stage := parse(line):
            display.show(stage)
    return tail


def main(arguments: list[str]) -> int:
    log_path = Path(sys.prefix) / "install.log"
    display = Display(sys.stdout, live=sys.stdout.isatty())
    command = [sys.executable, "-m", "pip", "install", "--verbose", "--progress-bar", "off", *arguments]
    with (
        log_path.open("w", buffering=1, encoding="utf-8") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as pip,
    ):
        assert pip.stdout is not None
        try:
            tail = follow(pip.stdout, display, log)
        except KeyboardInterrupt:
            display.close()
            sys.stderr.write("install: interrupted; the next one begins again\n")
            return EXIT_INTERRUPTED  # leaving the block waits for pip, which Ctrl-C has reached too
    display.close()
    if pip.returncode:
        sys.stderr.write("".join(tail))
        sys.stderr.write(f"install: pip failed with exit code {pip.returncode}; its whole output is in {log_path}\n")
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
