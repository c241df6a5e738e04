"""Ollama's JavaScript client against a real server, with the stub and with a real model; ``scripts/test`` installs it
where npm is."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.harness import RunningServer
from tests.server.programs import MODEL, real_server
from tests.support.waiting import until

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
    pytest.mark.skipif(not (HERE / "node_modules").is_dir(), reason="npm install was not run in tests/server"),
]


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RunningServer]:
    yield from real_server(tmp_path)


def all_holds(server: RunningServer, model: str) -> None:
    done = subprocess.run(
        ["node", str(HERE / "clients.mjs"), server.url, model],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    until(lambda: not server.ask(lambda inside: any(slot.gate.running for slot in inside.pool.slots())))  # one aborts


def test_ollama_js(server: RunningServer) -> None:
    all_holds(server, "stub")


@pytest.mark.model
@pytest.mark.slow
def test_ollama_js_on_a_real_model(real: RunningServer) -> None:
    all_holds(real, MODEL)
