"""What is built on clients of the APIs, run as a program of its own: what such libraries leave open, start in the
background or warn of stays out of our process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.harness import RunningServer
from tests.support.models import smollm2

MODEL = "smollm2"


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None, reason=f"{module} is not installed (the frameworks extra)"
    )


def real_server(root: Path) -> Iterator[RunningServer]:
    """With SmolLM2 as ``MODEL``, the same text whether a prompt was read or restored."""
    models = {MODEL: {"model_path": str(smollm2()), "context_opts": {"n_ctx": 2048}, "exact": "cold"}}
    with RunningServer(root, models=models, queue_timeout_s=120.0) as running:
        yield running


def held(server: RunningServer, home: Path, code: str) -> None:
    """Run ``code``, which knows URL and MODEL. Its home is empty: nothing of the user's is read or written."""
    environ = {**os.environ, "OLLAMA_HOST": server.url, "HOME": str(home), "LLM_USER_PATH": str(home / "llm")}
    environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "true", "LANGSMITH_TRACING": "false"}
    program = f"URL, MODEL = {server.url!r}, {MODEL!r}\n{textwrap.dedent(code)}\nprint('held')"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("held\n")
