"""``barrel-inference list``: what is installed."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from barrel_inference.cli.installed import registry, relative
from barrel_inference.cli.report import Json, human_bytes, print_json
from barrel_inference.registry import Manifest


def register(app: typer.Typer) -> None:
    app.command("list")(list_models)
    app.command("ls", hidden=True)(list_models)


def list_models(
    prefix: Annotated[str, typer.Argument(help="Only names that begin so.")] = "", json: Json = False
) -> None:
    """Installed models, newest first.

    Example: barrel-inference list
    """
    listing = registry().list()
    manifests = [m for m in listing.manifests if str(m.model_name).lower().startswith(prefix.lower())]
    if json:
        broken = [each._asdict() for each in listing.broken]
        print_json({"models": [msgspec.to_builtins(m) for m in manifests], "unreadable": broken})
        return
    typer.echo(table([("NAME", "ID", "SIZE", "QUANT", "MODIFIED"), *map(_row, manifests)]))
    for name, reason in listing.broken:
        typer.echo(f"unreadable: {name}: {reason}", err=True)


def _row(m: Manifest) -> tuple[str, ...]:
    quantization = m.quantization.upper()
    return str(m.model_name), m.digest[7:19], human_bytes(m.total_bytes), quantization, relative(m.modified_at)


def table(rows: list[tuple[str, ...]]) -> str:
    """Columns as wide as their widest cell."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
