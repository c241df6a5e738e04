"""``barrel-inference help --json``: the commands as data, for shells, editors and whoever wraps the program. Owns
nothing."""

from __future__ import annotations

from typing import Any

import typer

from barrel_inference.cli.report import print_json
from barrel_inference.errors import ConfigError
from barrel_inference.options import nearest


def describe(app: typer.Typer, words: list[str]) -> None:
    """Print the command that ``words`` name, or all of them. Raises ConfigError for a name that is none."""
    found: Any = typer.main.get_group(app)
    name = "barrel-inference"
    for word in words:
        inner = getattr(found, "commands", {})
        if word not in inner:
            raise ConfigError(f"No such command {word!r}{nearest(word, inner)}", option="command", value=word)
        name, found = f"{name} {word}", inner[word]
    print_json(command(found, name))


def command(found: Any, name: str) -> dict[str, Any]:
    """``name``, ``help``, ``arguments`` and ``options``; of a group ``commands``, without those that are not shown."""
    inner = getattr(found, "commands", {})
    told: dict[str, Any] = {"name": name, "help": (found.help or "").strip()}
    if inner:
        return told | {"commands": [command(each, word) for word, each in inner.items() if not each.hidden]}
    shown = [each for each in found.params if not getattr(each, "hidden", False)]
    return told | {
        "arguments": [_parameter(each) for each in shown if each.param_type_name == "argument"],
        "options": [_option(each) for each in shown if each.param_type_name == "option"],
    }


def _option(each: Any) -> dict[str, Any]:
    return {"flags": each.opts, "takes_value": not each.is_flag} | _parameter(each)


def _parameter(each: Any) -> dict[str, Any]:
    """``default`` null: none, or decided at run time."""
    default = None if callable(each.default) else each.default
    return {
        "name": each.name,
        "help": each.help or "",
        "required": bool(each.required),
        "repeatable": bool(each.multiple or each.nargs != 1),
        "default": default if isinstance(default, str | int | float | bool) else None,
    }
