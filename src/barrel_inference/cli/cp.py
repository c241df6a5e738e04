"""``barrel-inference cp``: a second name for a model."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from barrel_inference.cli import remote
from barrel_inference.cli.installed import registry
from barrel_inference.cli.report import Json, print_json


def register(app: typer.Typer) -> None:
    app.command()(cp)


def cp(
    source: Annotated[str, typer.Argument(help="An installed model.")],
    destination: Annotated[str, typer.Argument(help="The new name; replaced if it exists.")],
    json: Json = False,
) -> None:
    """Give a model a second name; the weights are not copied.

    Example: barrel-inference cp smollm2:135m small
    """
    if (server := remote.named()) is not None:
        server.ask("POST", "/api/copy", {"source": source, "destination": destination})
        copied: dict[str, Any] = {"source": source, "destination": destination}
    else:
        copied = msgspec.to_builtins(registry().copy(source, destination))
    if json:
        print_json(copied)
    else:
        typer.echo(f"copied '{source}' to '{destination}'")
