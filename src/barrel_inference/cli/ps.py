"""``barrel-inference ps``: what is loaded."""

from __future__ import annotations

from typing import Any

import typer

from barrel_inference.cli.client import Client
from barrel_inference.cli.installed import relative
from barrel_inference.cli.report import Json, human_bytes, print_json, table

HEAD = ("NAME", "SIZE", "DIGEST", "CONTEXT", "REQUESTS", "UNTIL")


def register(app: typer.Typer) -> None:
    app.command()(ps)


def ps(json: Json = False) -> None:
    """Loaded models, and until when each stays.

    Example: barrel-inference ps
    """
    found = Client().ask("GET", "/api/ps")
    if json:
        print_json(found)
    else:
        typer.echo(table([HEAD, *map(_row, found["models"])], numbers=[1, 3]))


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    requests = f"{model['active']}, {model['queued']} waiting"
    until = model["until"]
    return (
        model["name"],
        human_bytes(model["size"]),
        model["digest"][:12],
        str(model["context_length"]),
        requests,
        until if until == "never" else relative(until),
    )
