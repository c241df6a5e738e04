"""What llama.cpp says: complaints are kept for the error that follows them, and only errors are news."""

from __future__ import annotations

import logging

import pytest

from barrel_inference.errors import LoadError, OutOfMemoryError

binding = pytest.importorskip("barrel_inference.engine.llama.binding")
WARN, ERROR, CONTINUED = 3, 4, 5


def test_warnings_are_kept_and_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    tail = binding.LogTail()
    with caplog.at_level(logging.INFO, binding.__name__):
        tail.write(WARN, "n_ctx_seq (16384) > n_ctx_train (8192)\n")
        assert caplog.records == []
        tail.write(ERROR, "no such tensor\n")
        tail.write(CONTINUED, "x\n")
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "no such tensor"),
        ("WARNING", "x"),
    ]
    assert tail.reason("") == "no such tensor; x; n_ctx_seq (16384) > n_ctx_train (8192)"
    assert isinstance(tail.failure("it", "", LoadError), LoadError)


def test_a_want_of_memory_comes_first_and_has_its_own_error() -> None:
    tail = binding.LogTail()
    tail.write(WARN, "failed to mlock 10-byte buffer: Cannot allocate memory\n")
    assert isinstance(tail.failure("it", "", LoadError), LoadError)
    tail.write(ERROR, "cannot go on\n")
    tail.write(ERROR, "insufficient memory (attempted to allocate 720.00 MB)\n")
    error = tail.failure("llama.cpp refuses it", "", LoadError)
    assert isinstance(error, OutOfMemoryError)
    assert error.message.startswith(
        "llama.cpp refuses it: insufficient memory (attempted to allocate 720.00 MB); cannot"
    )
