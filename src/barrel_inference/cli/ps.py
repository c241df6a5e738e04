"""``barrel-inference ps``: what is loaded."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Any

import typer

from barrel_inference.cli.client import Client
from barrel_inference.cli.report import Json, human_bytes, print_json, table

HEAD = ("NAME", "SIZE", "ID", "CONTEXT", "REQUESTS", "UNTIL")


def register(app: typer.Typer) -> None:
    app.command()(ps)


def ps(json: Json = False) -> None:
    """List loaded models, and how long each stays.

    Names of the same weights share one row. UNTIL is a time in this machine's zone, or never: the model is held, or a
    request is running.

    Example: barrel-inference ps
    """
    found = Client().ask("GET", "/api/ps")
    if json:
        print_json(found)
    else:
        typer.echo(table([HEAD, *map(_row, found["models"])], numbers=[1, 3]))


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    requests = f"{model['active']}, {model['queued']} waiting"
    return (
        ", ".join(model["names"]),
        human_bytes(model["size"]),
        model["digest"][:12],
        str(model["context_length"]),
        requests,
        local_time(model["until"]),
    )


def local_time(moment: str, zone: tzinfo | None = None) -> str:
    """2026-11-29T20:56:53Z as 2026-11-29T21:56:53+01:00: to the second, in ``zone`` or this machine's; ``never`` as it
    is."""
    if moment == "never":
        return moment
    return datetime.fromisoformat(moment).astimezone(zone).isoformat(timespec="seconds")
