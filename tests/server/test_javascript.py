"""Ollama's JavaScript client against a real server; ``scripts/test`` installs it where npm is."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.server.harness import RunningServer

HERE = Path(__file__).parent


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.skipif(not (HERE / "node_modules").is_dir(), reason="npm install was not run in tests/server")
def test_ollama_js(server: RunningServer) -> None:
    done = subprocess.run(
        ["node", str(HERE / "clients.mjs"), server.url], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 5  # its last request was aborted
    while server.ask(lambda inside: any(slot.gate.running for slot in inside.pool.slots())):
        assert time.monotonic() < deadline, "an aborted request still runs"
        time.sleep(0.02)
