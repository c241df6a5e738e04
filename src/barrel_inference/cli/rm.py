"""``barrel-inference rm``: forget models."""

from __future__ import annotations

from typing import Annotated

import typer

from barrel_inference.cli import remote
from barrel_inference.cli.installed import registry
from barrel_inference.cli.report import Json, print_json


def register(app: typer.Typer) -> None:
    app.command()(rm)


def rm(models: Annotated[list[str], typer.Argument(help="Installed models.")], json: Json = False) -> None:
    """Remove models; gc frees their disk space.

    Weights that another name uses stay.

    Example: barrel-inference rm smollm2:135m && barrel-inference gc
    """
    server = remote.named()
    installed = registry() if server is None else None
    for name in models:
        if installed is not None:
            installed.remove(name)
        elif server is not None:
            server.ask("DELETE", "/api/delete", {"model": name})
        if not json:
            typer.echo(f"deleted '{name}'")
    if json:
        print_json({"deleted": models})
