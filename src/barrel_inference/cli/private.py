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

from barrel_inference.cli.client import Client
from barrel_inference.errors import UnreachableError
from barrel_inference.server.environment import ENV_HOST, configuration

STOP_TIMEOUT_S = 45.0  # it may still have state to save


@contextmanager
def server(model: str) -> Iterator[tuple[Client, str]]:
    """A client, and what ``model`` is called there: a GGUF file gets a name. Raises UnreachableError."""
    client = Client()
    if client.is_there():
        yield client, _registered(client, model)
        return
    if os.environ.get(ENV_HOST):  # that one was meant, and no other
        raise UnreachableError(f"no server at {client.url}: start one there, or unset {ENV_HOST}")
    with _started(model) as own:
        yield own, _name(model)


def _is_file(model: str) -> bool:
    return model.endswith(".gguf") or Path(model).is_file()


def _name(model: str) -> str:
    return Path(model).stem if _is_file(model) else model


def _registered(client: Client, model: str) -> str:
    if not _is_file(model):
        return model
    for _ in client.lines("/api/pull", {"model": str(Path(model).expanduser().absolute())}):
        pass
    return _name(model)


@contextmanager
def _started(model: str) -> Iterator[Client]:
    """For this conversation alone, whatever the configuration says of the server that others ask."""
    key = secrets.token_hex(16)
    environ = {**os.environ, "BARREL_INFERENCE_SERVER_API_KEYS": json.dumps([key])}
    environ["BARREL_INFERENCE_SERVER_PRELOAD"] = "[]"
    if _is_file(model):
        path = str(Path(model).expanduser().absolute())
        models = configuration(os.environ, {}).server.models | {_name(model): {"model_path": path}}
        environ["BARREL_INFERENCE_SERVER_MODELS"] = json.dumps(models)
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
