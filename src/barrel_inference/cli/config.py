"""``barrel-inference config``: the configuration that is in force, and whether a file is right."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from barrel_inference.cli.installed import catalog
from barrel_inference.cli.report import Json, print_json, printable
from barrel_inference.config import RuntimeConfig
from barrel_inference.errors import ConfigError
from barrel_inference.options import SECRETS, config_file, layered
from barrel_inference.server.environment import configuration


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Show and check the configuration.", rich_markup_mode=None)
    group.command()(show)
    group.command()(check)
    app.add_typer(group, name="config")


def show(
    all_: Annotated[bool, typer.Option("--all", help="Also options at their defaults.")] = False, json: Json = False
) -> None:
    """Show the settings in force: defaults, file, environment. Secrets are not shown.

    Example: barrel-inference config show --all
    """
    values = _hidden(msgspec.to_builtins(configuration(os.environ, {})))
    if not all_:
        values = difference(values, msgspec.to_builtins(RuntimeConfig()))
    if json:
        print_json(values)
        return
    typer.echo(
        f"# {config_file() or 'there is no configuration file'}" + ("" if values else "; the defaults are in force")
    )
    for line in toml_lines(values):
        typer.echo(line)


def check(
    file: Annotated[Path | None, typer.Argument(help="The file. Default: the one in use.")] = None, json: Json = False
) -> None:
    """Check that a file has only known keys with allowed values.

    Models that it describes but that are not here are warned about, and an address that serve would refuse. Without a
    file named, the environment is checked too.

    Example: barrel-inference config check barrel.toml
    """
    path = file or config_file()
    written = layered(RuntimeConfig(), file=path, environ={}, flags={})
    config = written if file else configuration(os.environ, {})
    warnings = [*catalog(config).missing(), *_exposed(written)]  # the environment's address is also whom to ask
    for what in warnings:
        typer.echo(f"warning: {printable(what)}", err=True)
    if json:
        print_json({"file": path and str(path), "valid": True, "warnings": warnings})
    elif path is None:
        defaults = config == configuration({}, {})
        typer.echo(
            "there is no configuration file; the " + ("defaults are in force" if defaults else "environment is right")
        )
    else:
        typer.echo(f"{path} is right")


def _exposed(config: RuntimeConfig) -> list[str]:
    """Only a warning: a flag of serve may allow it."""
    from barrel_inference.server.serving import check_exposure  # brings the HTTP server

    try:
        check_exposure(config.server)
    except ConfigError as error:
        return [str(error)]
    return []


def _hidden(values: dict[str, Any]) -> dict[str, Any]:
    """Secrets that are set, by three stars."""
    shown = {name: _hidden(value) if isinstance(value, dict) else value for name, value in values.items()}
    return shown | {name: "***" for name in SECRETS if values.get(name)}


def difference(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name, value in values.items():
        default = defaults.get(name)
        if isinstance(value, dict) and isinstance(default, dict) and default:
            value = difference(value, default)
            if value:
                changed[name] = value
        elif value != default:
            changed[name] = value
    return changed


def toml_lines(values: dict[str, Any], path: tuple[str, ...] = ()) -> list[str]:
    """As the file would say it; what is not set is left out."""
    plain = {name: value for name, value in values.items() if value is not None and not isinstance(value, dict)}
    lines = [f"{_key(name)} = {_literal(value)}" for name, value in plain.items()]
    for name, value in values.items():
        if isinstance(value, dict) and value:
            inner = (*path, _key(name))
            lines += ["", f"[{'.'.join(inner)}]", *toml_lines(value, inner)]
    return lines


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else msgspec.json.encode(name).decode()


def _literal(value: Any) -> str:
    """JSON's scalars and arrays are TOML's; tables within arrays are inline tables."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {_literal(each)}" for name, each in value.items()) + "}"
    return msgspec.json.encode(value).decode()
