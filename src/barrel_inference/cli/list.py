"""``barrel-inference list``: what is installed, and what the configuration describes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from barrel_inference.cli import remote
from barrel_inference.cli.installed import configured, registry, relative
from barrel_inference.cli.report import Json, human_bytes, print_json, table
from barrel_inference.registry import Manifest

HEAD = ("NAME", "ID", "SIZE", "QUANT", "MODIFIED")


def register(app: typer.Typer) -> None:
    app.command("list")(list_models)
    app.command("ls", hidden=True)(list_models)


def list_models(
    prefix: Annotated[str, typer.Argument(help="Only names that begin with this.")] = "", json: Json = False
) -> None:
    """List installed and configured models, newest first.

    Example: barrel-inference list
    """
    if (server := remote.named()) is not None:
        told = [m for m in server.ask("GET", "/api/tags")["models"] if m["name"].lower().startswith(prefix.lower())]
        if json:
            print_json({"models": told})
        else:
            _tell([*map(_listed, told)], prefix)
        return
    listing, described = registry().list(), configured()
    hidden = {m.model_name.key for m in described}
    found = [*described, *(m for m in listing.manifests if m.model_name.key not in hidden)]
    found.sort(key=lambda m: datetime.fromisoformat(m.modified_at), reverse=True)
    manifests = [m for m in found if str(m.model_name).lower().startswith(prefix.lower())]
    if json:
        broken = [each._asdict() for each in listing.broken]
        print_json({"models": [msgspec.to_builtins(m) for m in manifests], "unreadable": broken})
        return
    _tell([*map(_row, manifests)], prefix)
    for name, reason in listing.broken:
        typer.echo(f"unreadable: {name}: {reason}", err=True)


def _tell(rows: list[tuple[str, ...]], prefix: str) -> None:
    typer.echo(table([HEAD, *rows], numbers=[2]))
    if not rows and prefix:
        typer.echo(f"no model's name begins with {prefix!r}: barrel-inference list shows all", err=True)
    elif not rows:
        typer.echo("nothing yet: barrel-inference pull smollm2:135m fetches a small model", err=True)


def _listed(m: dict[str, Any]) -> tuple[str, ...]:
    """As a server tells it."""
    quantization = m["details"]["quantization_level"]
    return m["name"], m["digest"][:12], human_bytes(m["size"]), quantization, relative(m["modified_at"])


def _row(m: Manifest) -> tuple[str, ...]:
    quantization = m.quantization.upper()
    return str(m.model_name), m.digest[7:19], human_bytes(m.total_bytes), quantization, relative(m.modified_at)
