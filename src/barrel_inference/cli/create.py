"""``barrel-inference create``: a model of one's own from a Modelfile."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from barrel_inference.cli import remote
from barrel_inference.cli.installed import registry
from barrel_inference.cli.progress import follow
from barrel_inference.cli.pull import Json, JsonLines
from barrel_inference.errors import ModelfileError, os_reason
from barrel_inference.registry.create import CreateRequest


def register(app: typer.Typer) -> None:
    app.command()(create)


def create(
    name: Annotated[str, typer.Argument(help="The new model's name.")],
    file: Annotated[Path, typer.Option("--file", "-f", help="The Modelfile; - reads standard input.")] = Path(
        "Modelfile"
    ),
    base: Annotated[str | None, typer.Option("--from", help="A model, GGUF or spec, instead of a Modelfile.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow http:// when FROM must be fetched.")] = False,
    json: Json = False,
) -> None:
    """Make a model of your own from a Modelfile.

    It can have another system message, other parameters, an adapter, or weights of your own.

    Example: barrel-inference create pirate -f Modelfile

    Example: barrel-inference create mine --from ./weights.gguf
    """
    modelfile = None if base is not None else _read(file)
    display = JsonLines() if json else None
    if (server := remote.named()) is not None:
        text = None if modelfile is None else modelfile.decode(errors="replace")
        body = {"model": name, "from": base, "modelfile": text}
        remote.follow(server, "/api/create", body, display)
        return
    request = CreateRequest(
        from_=base,
        modelfile=modelfile,
        directory=str(Path.cwd() if base is not None or str(file) == "-" else file.absolute().parent),
        insecure=insecure,
    )
    asyncio.run(follow(registry().create(name, request), display))


def _read(file: Path) -> bytes:
    if str(file) == "-":
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise ModelfileError(f"{file}: {os_reason(error)}; name it with -f, or use --from") from None
