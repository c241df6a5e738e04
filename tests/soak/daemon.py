"""A real ``barrel-inference serve`` on loopback with models and tiers of its own. Owns the process and its tmpfs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

STEADY = "steady"  # its worker is left alone, so that it can be seen to grow
SHAKEN = "shaken"  # killed, unloaded, loaded again
REAL = "real"  # SmolLM2, one request at a time
QUOTA_BYTES = 48 << 20
STOP_S = 120.0
TMPFS = Path("/dev/shm")


class Daemon:
    """``real``: the path of real weights, None for stubs only."""

    def __init__(self, root: Path, registry_url: str, real: Path | None) -> None:
        self.models_dir = root / "models"
        self.log = root / "log"
        tmpfs = TMPFS if os.access(TMPFS, os.W_OK) else root
        self.tmpfs = Path(tempfile.mkdtemp(prefix="barrel-soak-", dir=tmpfs))
        self._log_file = self.log.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "barrel_inference.cli.main", "serve", "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            env=os.environ | _environment(root, self.tmpfs, self.models_dir, registry_url, real),
            text=True,
        )
        self.process = psutil.Process(self._process.pid)
        self.url = ""

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server did not start:\n{self.log.read_text()}")
        self.url = json.loads(line)["url"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log_file.close()
        shutil.rmtree(self.tmpfs, ignore_errors=True)

    def workers(self) -> list[psutil.Process]:
        return [each for each in self.process.children(recursive=True) if _lives(each)]

    def stop(self) -> list[str]:
        """As an operator would; what is wrong about its end."""
        children = self.workers()
        self._process.terminate()
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            return [f"the server did not end within {STOP_S:g} s of SIGTERM"]
        wrong = [] if code == 0 else [f"the server ended with exit code {code}"]
        wrong += [f"worker {each.pid} outlived the server" for each in psutil.wait_procs(children, 30)[1]]
        return wrong


def _environment(root: Path, tmpfs: Path, models_dir: Path, registry_url: str, real: Path | None) -> dict[str, str]:
    """A worker that is killed takes what it is doing with it; three sequences make clients wait for each other."""
    stub: dict[str, Any] = {"backend": "stub", "context_opts": {"n_ctx": 1024}}
    models: dict[str, Any] = {
        STEADY: {**stub, "stub": {"model": STEADY, "eog_every": 50}},
        SHAKEN: {**stub, "stub": {"model": SHAKEN, "delay_ms": 1.0, "eog_every": 50}},
    }
    if real is not None:
        # Alone in its batch and cut at the same places, a prompt has the same bits each time: see docs/kv-cache.md
        context = {"n_ctx": 1024, "n_seq_max": 1}
        models[REAL] = {"model_path": str(real), "context_opts": context, "exact": "cold"}
    tiers = [
        {"name": "memory", "kind": "ram_file", "path": str(tmpfs / "kv"), "quota_bytes": QUOTA_BYTES},
        {"name": "disk", "kind": "disk", "path": str(root / "kv"), "quota_bytes": QUOTA_BYTES},
    ]
    options = {
        "MODEL_CACHE_DIR": str(models_dir),
        "CACHE_DIR": str(root / "cache"),
        "RAM_DIR": str(tmpfs),
        "TIERS": json.dumps(tiers),
        "REGISTRY_OLLAMA_ENDPOINT": registry_url,
        "SERVER_MODELS": json.dumps(models),
        "SERVER_NUM_PARALLEL": "3",
        "SERVER_MAX_QUEUE": "64",
        "SERVER_KEEP_ALIVE_DEFAULT_MS": "-1",
        "CONFIG": "",
    }
    return {f"BARREL_INFERENCE_{name}": value for name, value in options.items()} | {"XDG_CONFIG_HOME": str(root)}


def _lives(process: psutil.Process) -> bool:
    """Another may end it in this moment."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
