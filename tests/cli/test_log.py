"""The server's log: in order, whole while it is read, and in nobody's way while it is not."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from barrel_inference.cli import log
from barrel_inference.cli.log import Patient
from tests.support.waiting import until


class Pipe(NamedTuple):
    reading: int
    writing: int

    def read(self) -> bytes:
        return os.read(self.reading, 1 << 20)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe(*os.pipe())
    yield made
    os.close(made.reading)


def record(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": text, "levelname": "INFO"})


def test_what_is_flushed_is_written_in_order(pipe: Pipe) -> None:
    handler = Patient(pipe.writing)
    for number in range(500):
        handler.handle(record(f"line {number}"))
    handler.flush()
    assert pipe.read().decode().splitlines() == [f"line {number}" for number in range(500)]


def test_what_nobody_reads_is_dropped_and_counted_in_its_place(pipe: Pipe) -> None:
    handler = Patient(pipe.writing, max_lines=2)
    handler.handle(record("x" * 200_000))  # more than a pipe holds
    until(lambda: handler._lines.empty())
    for number in range(5):
        handler.handle(record(f"line {number}"))
    found = b""

    def has_read(words: bytes) -> bool:
        nonlocal found
        found += pipe.read()
        return words in found

    until(lambda: has_read(b"line 1\n"))
    handler.handle(record("later"))
    until(lambda: has_read(b"later\n"))
    assert found.decode().splitlines()[1:] == [
        "line 0",
        "line 1",
        "lines of the log that nobody read are lost: 3",
        "later",
    ]


def test_the_end_tells_what_was_lost_and_does_not_wait_for_ever(pipe: Pipe) -> None:
    handler = Patient(pipe.writing, max_lines=1)
    handler.handle(record("x" * 200_000))
    until(lambda: handler._lines.empty())
    handler.handle(record("kept"))
    handler.handle(record("lost"))
    began = time.monotonic()
    handler.flush()
    assert log.FLUSH_S <= time.monotonic() - began < 10 * log.FLUSH_S
    found = b""
    while b"kept" not in found:
        found += pipe.read()
    handler.flush()
    assert pipe.read() == b"lines of the log that nobody read are lost: 1\n"


def test_a_reader_who_has_left_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    handler = Patient(writing)
    handler.handle(record("unheard"))
    handler.flush()
    assert not handler._lines.unfinished_tasks
    os.close(writing)
