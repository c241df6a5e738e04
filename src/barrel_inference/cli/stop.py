"""``barrel-inference stop``: unload a model of a running server."""

from __future__ import annotations

from typing import Annotated

import typer

from barrel_inference.cli.client import Client
from barrel_inference.cli.report import Json, print_json
from barrel_inference.errors import NotLoadedError


def register(app: typer.Typer) -> None:
    app.command()(stop)


def stop(
    model: Annotated[str, typer.Argument(help="The model's name; see barrel-inference ps.")], json: Json = False
) -> None:
    """Unload a model; what it has read is kept.

    Running requests end first.

    Example: barrel-inference stop smollm2:135m
    """
    client = Client()
    if not client.has_loaded(model):
        raise NotLoadedError(f"model '{model}' is not loaded; barrel-inference ps shows those that are")
    answer = client.ask("POST", "/api/generate", {"model": model, "keep_alive": 0})
    if json:
        print_json(answer)
    else:
        typer.echo(f"stopped '{model}'")
