"""What signals do to a server that is a process of its own."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.support.waiting import until

SLOW = """
drain_s = {drain_s}
[server.models.slow]
backend = "stub"
stub = {{ delay_ms = 20.0 }}
"""
ASKED = {"model": "slow", "prompt": "hi", "options": {"num_predict": 100_000}}


@contextmanager
def served(root: Path, drain_s: float) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Its log is ``root / "log"``."""
    command, environ = prepared(root, drain_s)
    with (
        (root / "log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environ, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            yield server, json.loads(server.stdout.readline())["url"]
        finally:
            server.kill()


def prepared(root: Path, drain_s: float, port: int = 0) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a server with the slow model."""
    configuration = root / "config.toml"
    where = [f"{name} = {json.dumps(str(root / name))}" for name in ("cache_dir", "model_cache_dir", "ram_dir")]
    configuration.write_text("\n".join([*where, "[server]", SLOW.format(drain_s=drain_s)]))
    (root / "ram_dir").mkdir()
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(root), "BARREL_INFERENCE_CONFIG": str(configuration)}
    return [sys.executable, "-m", "barrel_inference.cli.main", "serve", "--port", str(port), "--json"], environ


def asked(url: str) -> Any:
    return urlopen(Request(url + "/api/generate", json.dumps(ASKED).encode()), timeout=60)


def test_a_terminal_that_closes_ends_it_in_order(tmp_path: Path) -> None:
    with served(tmp_path, drain_s=0.2) as (server, url), asked(url) as answer:
        answer.readline()
        server.send_signal(signal.SIGHUP)
        assert "error" in json.loads(answer.readlines()[-1])
        assert server.wait(60) == 0
    assert "waiting up to 0.2 s for 1 request to end; Ctrl-C again ends it now" in (tmp_path / "log").read_text()


def test_a_second_interrupt_does_not_wait_for_what_runs(tmp_path: Path) -> None:
    with served(tmp_path, drain_s=3600) as (server, url), asked(url) as answer:
        answer.readline()
        server.send_signal(signal.SIGINT)
        answer.readline()
        assert server.poll() is None
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 130


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_it_serves_and_ends_whichever_standard_descriptor_is_closed(tmp_path: Path, closed: str) -> None:
    port = free_port()
    command, environ = prepared(tmp_path, drain_s=0.2, port=port)
    with subprocess.Popen(["sh", "-c", f'exec "$@" {closed}', "sh", *command], env=environ) as server:
        try:
            until(lambda: server.poll() is not None or answers(port))
            with asked(f"http://127.0.0.1:{port}") as answer:
                answer.readline()
                server.terminate()
                answer.readlines()
            assert server.wait(60) == 0
        finally:
            server.kill()


def test_a_log_that_nobody_reads_stops_no_request_and_not_the_end(tmp_path: Path) -> None:
    command, environ = prepared(tmp_path, drain_s=0.2)
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writing, env=environ, text=True) as server:
        os.close(writing)
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            for _ in range(100):
                with urlopen(url + "/api/version", timeout=60) as answer:
                    assert answer.status == 200
            server.terminate()
            assert server.wait(60) == 0
            assert b"barrel_inference.requests" in os.read(reading, 100_000)
        finally:
            server.kill()
            os.close(reading)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
