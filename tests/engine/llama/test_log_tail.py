"""What llama.cpp says: complaints are kept for the error that follows them, and only errors are news."""

from __future__ import annotations

import logging

import pytest

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
    assert tail.reason("") == "n_ctx_seq (16384) > n_ctx_train (8192); no such tensor; x"
