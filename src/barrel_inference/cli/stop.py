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
    names = {each["name"] for each in client.ask("GET", "/api/ps")["models"]}
    if model not in names and f"{model}:latest" not in names:
        raise NotLoadedError(f'couldn\'t find model "{model}" to stop; loaded: {", ".join(sorted(names)) or "none"}')
    answer = client.ask("POST", "/api/generate", {"model": model, "keep_alive": 0})
    if json:
        print_json(answer)
    else:
        typer.echo(f"stopped '{model}'")
