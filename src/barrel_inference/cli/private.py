"""The server to talk to: the one that runs, or one of our own for as long as it is needed. Owns that one's process."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from barrel_inference.cli import remote
from barrel_inference.cli.client import Client
from barrel_inference.cli.local import no_file
from barrel_inference.errors import UnreachableError, UnsupportedError
from barrel_inference.registry.files import absolute
from barrel_inference.registry.names import is_weights_path, name_of
from barrel_inference.server.environment import configuration

STOP_TIMEOUT_S = 45.0  # it may still have state to save


def running(model: str) -> tuple[Client, str] | None:
    """The server that is to answer, and what it calls ``model``; None when that is a matter of our own.

    One that BARREL_INFERENCE_HOST names is meant, whatever it says; a file is made known to it. The one that runs where
    this machine's configuration says is asked for the names it knows. Raises what making a file known raises.
    """
    if (named := remote.named()) is not None:
        return named, made_known(named, model)
    if weights_file(model) is not None:
        return None
    here = Client()
    return (here, model) if here.is_ours() and here.knows(model) else None


def made_known(client: Client, model: str) -> str:
    """What the server calls ``model``: a file becomes one of its models. Raises what the server answers."""
    file = weights_file(model)
    if file is None:
        return model
    for _ in client.lines("/api/pull", {"model": file}):
        pass
    return name_of(file).name


@contextmanager
def server(model: str) -> Iterator[tuple[Client, str]]:
    """``running``, or else one of our own until the end of the block. Raises UnreachableError, and InvalidModelError
    for a file that is not there."""
    if (found := running(model)) is not None:
        yield found
        return
    file = weights_file(model)
    if file is None:
        name, models = model, {}
    elif not Path(file).is_file():
        raise no_file(model)
    else:
        name, models = name_of(file).name, {name_of(file).name: {"model_path": file}}
    with _started(models) as own:
        yield own, name


def check_loading(client: Client, name: str, options: Mapping[str, Any]) -> None:
    """Options that count only when a model is loaded would be ignored by a server that has it. Raises
    UnsupportedError."""
    if "num_gpu" in options and client.has_loaded(name):
        raise UnsupportedError(
            f"--gpu-layers counts when a model is loaded, and the server at {client.url} has {name} loaded: "
            f"barrel-inference stop {name} first, or leave the option out"
        )


def weights_file(model: str) -> str | None:
    """The absolute path when ``model`` is a file and not a name."""
    path = absolute(Path(model))
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
        [*command, "--log-level", "error", "--until-eof"],
        stdin=subprocess.PIPE,  # closed when we are gone, however we went
        stdout=subprocess.PIPE,
        env=environ,
        process_group=0,  # Ctrl-C on the terminal is for the conversation, not for the server
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
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
        process.stdin.close()
