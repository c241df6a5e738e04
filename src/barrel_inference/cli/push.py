"""``barrel-inference push``: there for those who know it from Ollama; it says that models are not uploaded."""

from __future__ import annotations

from typing import Annotated

import typer

from barrel_inference.cli.report import Json
from barrel_inference.errors import UnsupportedError


def register(app: typer.Typer) -> None:
    app.command(hidden=True)(push)


def push(model: Annotated[str, typer.Argument(help="An installed model.")], json: Json = False) -> None:
    """Refused: models are fetched from registries, not uploaded to them.

    Example: barrel-inference show smollm2:135m --modelfile > Modelfile
    """
    raise UnsupportedError(f"pushing is not supported; barrel-inference show {model} --modelfile writes what to share")
