"""``barrel-inference search``: GGUF repositories of the Hugging Face Hub."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from barrel_inference.cli.installed import registry
from barrel_inference.cli.report import Json, print_json, table


def register(app: typer.Typer) -> None:
    app.command()(search)


def search(
    query: Annotated[str, typer.Argument(help="Words of the name.")],
    limit: Annotated[int, typer.Option(min=1, max=100, metavar="<int>", help="How many at most.")] = 20,
    json: Json = False,
) -> None:
    """Find models to pull.

    Example: barrel-inference search "qwen2.5 instruct"
    """
    found = asyncio.run(registry().search(query, limit=limit))
    if json:
        print_json(found)
        return
    rows = [("NAME", "DOWNLOADS", "LIKES")]
    typer.echo(table([*rows, *((m["name"], f"{m['downloads']:,}", str(m["likes"])) for m in found)], numbers=[1, 2]))
