"""``barrel-inference gc``: give back the space of what nothing uses."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from barrel_inference.cli import remote
from barrel_inference.cli.installed import registry
from barrel_inference.cli.report import Json, human_bytes, print_json


def register(app: typer.Typer) -> None:
    app.command()(gc)


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    json: Json = False,
) -> None:
    """Free the disk space that nothing uses.

    That is: weights of no installed or loaded model and of no running pull, and downloads long abandoned.

    Example: barrel-inference gc --dry-run
    """
    found = _collect(dry_run)
    if json:
        print_json(found)
        return
    for item in found["removed"]:
        typer.echo(f"{item['kind']:<10} {human_bytes(item['freed_bytes']):>10}  {item['name']}")
    typer.echo(f"{human_bytes(found['freed_bytes'])} {'would be freed' if dry_run else 'freed'}")


def _collect(dry_run: bool) -> dict[str, Any]:
    if (server := remote.named()) is not None:
        return dict(server.ask("POST", "/api/gc", {"dry_run": dry_run}))
    removed = registry().gc(dry_run=dry_run)
    freed = sum(item.freed_bytes for item in removed)
    return {"removed": [item._asdict() for item in removed], "freed_bytes": freed, "dry_run": dry_run}
