"""Two servers of one model: ours and llama.cpp's own ``llama-server``, with the same threads, sequences and context.

A peer owns its process and, between ``start`` and ``stop``, a file for its log. What ours has saved outlives a restart.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import aiohttp

from barrel_inference.worker.process import worker_environment

MODEL = "bench"
START_S = 120.0
STOP_S = 60.0
N_CTX = 4096  # of each sequence


class Peer(Protocol):
    name: str
    url: str

    async def start(self) -> None:
        """Until it answers requests with the model loaded."""

    async def stop(self) -> None: ...


class Ours:
    """``model_path`` None: no model is loaded, or known."""

    name = "ours"

    def __init__(self, model_path: str | None, folder: Path, *, threads: int, sequences: int) -> None:
        self.url = ""
        self._folder = folder
        self._command = [sys.executable, "-m", "barrel_inference.cli.main", "serve", "--port", "0", "--json"]
        self._command += ["--log-level", "warning", "--parallel", str(sequences), "--ctx", str(N_CTX)]
        models = {}
        if model_path is not None:
            models = {MODEL: {"model_path": model_path, "context_opts": {"n_threads": threads}}}
            self._command += ["--preload", MODEL, "--keep-alive", "-1"]
        self._environment = {
            **os.environ,
            "XDG_CACHE_HOME": str(folder),  # a store of its own, and nobody's settings
            "XDG_CONFIG_HOME": str(folder),
            "BARREL_INFERENCE_SERVER_MODELS": json.dumps(models),
        }
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        await self.listen()
        await _ready(f"{self.url}/health/ready", self.process)

    async def listen(self) -> float:
        """Seconds until it accepted connections."""
        began = time.perf_counter()
        self.process = _spawn(self._command, self._environment, self._folder / "ours.log", stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        line = await asyncio.to_thread(self.process.stdout.readline)
        self.url = json.loads(line)["url"]
        return time.perf_counter() - began

    async def stop(self) -> None:
        await _stop(self.process)
        self.process = None


class Theirs:
    """Its own settings but for the size, and for OpenMP's spinning: as in our workers, since with the default one busy
    neighbour makes it many times slower, which is not what is compared here."""

    name = "llama-server"

    def __init__(self, binary: Path, model_path: str, folder: Path, *, threads: int, sequences: int) -> None:
        self.url = ""
        self._folder = folder
        self.flags = ["-t", str(threads), "-np", str(sequences), "-c", str(N_CTX * sequences), "--kv-unified"]
        self._command = [str(binary), "-m", model_path, *self.flags]
        self._environment = worker_environment({**os.environ, "LD_LIBRARY_PATH": str(binary.parent)})
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [*self._command, "--host", "127.0.0.1", "--port", str(port)]
        self._process = _spawn(command, self._environment, self._folder / "theirs.log", stdout=None)
        await _ready(f"{self.url}/health", self._process)

    async def stop(self) -> None:
        await _stop(self._process)
        self._process = None


def find_llama_server(given: str | None) -> Path | None:
    """What was given, or what is on the PATH."""
    found = shutil.which(given or "llama-server")
    if found is None and given is not None:
        raise SystemExit(f"there is no program {given}")
    return Path(found).absolute() if found else None


def version_of(binary: Path) -> str:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(binary.parent)}
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, env=environment)
    return (done.stdout + done.stderr).strip().splitlines()[0].removeprefix("version: ")


def _spawn(
    command: list[str], environment: Mapping[str, str], log: Path, *, stdout: int | None
) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file if stdout is None else stdout,
            stderr=file,
            start_new_session=True,
        )


async def _ready(url: str, process: subprocess.Popen[bytes] | None) -> None:
    deadline = time.monotonic() + START_S
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline and process is not None and process.poll() is None:
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.02)
    raise RuntimeError(f"{url} did not become ready")


async def _stop(process: subprocess.Popen[bytes] | None) -> None:
    """In order; in the end by force."""
    if process is None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        await asyncio.to_thread(process.wait, STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
