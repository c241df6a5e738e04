"""``barrel-inference verify``: are the weights what they should be?"""

from __future__ import annotations

from typing import Annotated

import typer

from barrel_inference.cli import remote
from barrel_inference.cli.installed import registry
from barrel_inference.cli.report import EXIT_FAILED, Json, print_json


def register(app: typer.Typer) -> None:
    app.command()(verify)


def verify(
    models: Annotated[list[str] | None, typer.Argument(help="Installed models. Default: all of them.")] = None,
    json: Json = False,
) -> None:
    """Read every byte of the weights and compare with their digests.

    Example: barrel-inference verify smollm2:135m
    """
    remote.only_here("verify")
    results = []
    for result in registry().verify(models or ()):
        results.append(result)
        if not json:
            typer.echo(f"{result.name}  {result.digest[7:19]}  {result.problem or 'ok'}")
    if json:
        print_json([result._asdict() for result in results])
    elif not results:
        typer.echo("no models are installed")
    if any(result.problem for result in results):
        raise typer.Exit(EXIT_FAILED)
