"""The server to talk to: the one that runs, or one of our own for as long as it is needed. Owns that one's process."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from barrel_inference.cli.client import Client
from barrel_inference.errors import UnreachableError
from barrel_inference.registry.names import is_weights_path, name_of
from barrel_inference.server.environment import ENV_HOST, configuration

STOP_TIMEOUT_S = 45.0  # it may still have state to save


@contextmanager
def server(model: str) -> Iterator[tuple[Client, str]]:
    """A client, and what ``model`` is called there: a GGUF file gets a name. Raises UnreachableError."""
    file = weights_file(model)
    name = model if file is None else name_of(file).name
    client = Client()
    if client.is_there():
        if file is not None:
            for _ in client.lines("/api/pull", {"model": file}):
                pass
        yield client, name
        return
    if os.environ.get(ENV_HOST):  # that one was meant, and no other
        raise UnreachableError(f"no server at {client.url}: start one there, or unset {ENV_HOST}")
    with _started({} if file is None else {name: {"model_path": file}}) as own:
        yield own, name


def weights_file(model: str) -> str | None:
    """The absolute path when ``model`` is a file and not a name."""
    path = Path(model).expanduser().absolute()
    return str(path) if is_weights_path(model) or path.is_file() else None


@contextmanager
def _started(models: dict[str, Any]) -> Iterator[Client]:
    """For this conversation alone, whatever the configuration says of the server that others ask; it serves ``models``
    beside the configured ones."""
    key = secrets.token_hex(16)
    environ = {**os.environ, "BARREL_INFERENCE_SERVER_API_KEYS": json.dumps([key])}
    environ["BARREL_INFERENCE_SERVER_PRELOAD"] = "[]"
    environ["BARREL_INFERENCE_SERVER_MODELS"] = json.dumps(configuration(os.environ, {}).server.models | models)
    command = [sys.executable, "-m", "barrel_inference.cli.main", "serve", "--host", "127.0.0.1:0", "--json"]
    process = subprocess.Popen(
        [*command, "--log-level", "error"],
        stdout=subprocess.PIPE,
        env=environ,
        process_group=0,  # Ctrl-C on the terminal is for the conversation, not for the server
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise UnreachableError(f"the private server did not start (exit {process.wait()})")
        yield Client(json.loads(line)["url"], key=key)
    finally:
        process.stdout.close()
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
