"""The server that BARREL_INFERENCE_HOST names, for the commands that without it work on this machine's files. Owns
nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from barrel_inference.cli.client import Client
from barrel_inference.cli.progress import Display, display
from barrel_inference.errors import UnsupportedError
from barrel_inference.server.environment import ENV_HOST


def named(environ: Mapping[str, str] = os.environ) -> Client | None:
    """None when no server is named: this machine's own models are meant, and need none."""
    return Client(environ=environ) if environ.get(ENV_HOST) else None


def only_here(command: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raises UnsupportedError for a command that would not do what is expected while a server is named."""
    if environ.get(ENV_HOST):
        raise UnsupportedError(
            f"{command} works on files of this machine, not on the server that {ENV_HOST} names: "
            f"unset {ENV_HOST}, or run it there"
        )


def follow(client: Client, path: str, body: Mapping[str, Any], shown: Display | None = None) -> None:
    """Show what a long job of the server tells; raises what it raised. Not in an event loop, which would keep Ctrl-C
    until the server has said everything."""
    shown = shown or display()
    try:
        for event in client.lines(path, dict(body)):
            shown.show(event)
    finally:
        shown.close()
