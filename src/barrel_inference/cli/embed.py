"""``barrel-inference embed``: texts to vectors, by a running server."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from barrel_inference.cli.client import Client
from barrel_inference.cli.report import Json, print_json
from barrel_inference.errors import ConfigError


def register(app: typer.Typer) -> None:
    app.command()(embed)


def embed(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    texts: Annotated[
        list[str] | None, typer.Argument(help="What to embed. Default: each line of standard input.")
    ] = None,
    dimensions: Annotated[int | None, typer.Option(help="Shorten to this many numbers, and normalise again.")] = None,
    json: Json = False,
) -> None:
    """Turn texts into vectors, with a running server.

    Prints one vector a line, as JSON; with --json the server's whole answer.

    Example: barrel-inference embed all-minilm "The sky is blue." "Grass is green."

    Example: barrel-inference embed all-minilm < lines.txt
    """
    inputs = texts or ([] if sys.stdin.isatty() else sys.stdin.read().splitlines())
    if not inputs:
        raise ConfigError('there is nothing to embed: barrel-inference embed MODEL "a text"', option="texts")
    body = {"model": model, "input": inputs, "truncate": False}
    if dimensions is not None:
        body["dimensions"] = dimensions
    answer = Client().ask("POST", "/api/embed", body)
    if json:
        print_json(answer)
        return
    for vector in answer["embeddings"]:
        typer.echo(msgspec.json.encode(vector).decode())
