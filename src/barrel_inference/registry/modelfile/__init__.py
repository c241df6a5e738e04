"""Modelfiles: ``parse`` text into a value, ``render`` a value into text that parses to the same. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from barrel_inference.errors import ModelfileError
from barrel_inference.registry.modelfile.grammar import ROLES, Command, decode_text, format_command, parse_commands
from barrel_inference.registry.modelfile.parameters import (
    IGNORED,
    cap_note,
    check_parameters,
    format_parameter,
    loader_options,
    parse_parameter,
)

__all__ = ["ROLES", "Modelfile", "cap_note", "check_parameters", "line_of", "loader_options", "parse", "render"]


class Modelfile(msgspec.Struct, frozen=True, kw_only=True):
    """What a Modelfile says, directives of one kind together. ``warnings`` are lines for people."""

    sources: tuple[str, ...]  # FROM: names, specs, digests or paths
    parameters: dict[str, Any] = {}
    system: str | None = None
    template: str | None = None
    messages: tuple[dict[str, str], ...] = ()
    license: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def parse(content: bytes | str) -> Modelfile:
    """``ModelfileError`` (or ``DirectiveError``) names the line and what is wrong with it."""
    commands = parse_commands(decode_text(content) if isinstance(content, bytes) else content)
    if not any(command.name == "from" for command in commands):
        raise ModelfileError("no FROM line")
    texts = {command.name: command.value for command in commands if command.name in ("system", "template")}
    parameters, warnings = _parameters([command for command in commands if command.name == "parameter"])
    return Modelfile(
        sources=_values(commands, "from"),
        parameters=parameters,
        system=texts.get("system"),
        template=texts.get("template"),
        messages=tuple({"role": c.key, "content": c.value} for c in commands if c.name == "message"),
        license=_values(commands, "license"),
        adapters=_values(commands, "adapter"),
        warnings=warnings,
    )


def line_of(content: bytes | str, directive: str) -> int:
    """Where the directive that counts, the last of its name, begins."""
    commands = parse_commands(decode_text(content) if isinstance(content, bytes) else content)
    return max(command.line for command in commands if command.name == directive)


def render(modelfile: Modelfile) -> str:
    """The text of a Modelfile; ``ModelfileError`` if a value cannot be expressed in one."""
    commands = [Command("from", source) for source in modelfile.sources]
    commands += [Command("adapter", adapter) for adapter in modelfile.adapters]
    for name, text in (("template", modelfile.template), ("system", modelfile.system)):
        commands += [] if text is None else [Command(name, text)]
    for name, value in modelfile.parameters.items():
        values = value if isinstance(value, list) else [value]
        commands += [Command("parameter", format_parameter(item), name) for item in values]
    commands += [Command("message", message["content"], message["role"]) for message in modelfile.messages]
    commands += [Command("license", text) for text in modelfile.license]
    return "".join(format_command(command) + "\n" for command in commands)


def _values(commands: list[Command], name: str) -> tuple[str, ...]:
    return tuple(command.value for command in commands if command.name == name)


def _parameters(commands: list[Command]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Typed values, the last of a name winning, except that every ``stop`` counts."""
    parameters: dict[str, Any] = {}
    warnings = []
    for command in commands:
        if command.key in IGNORED:
            warnings.append(f"(line {command.line}): parameter {command.key} is deprecated and has no effect")
            continue
        try:
            value = parse_parameter(command.key, command.value)
        except ModelfileError as error:
            raise ModelfileError(f"(line {command.line}): {error.message}", line=command.line) from None
        if command.key == "stop":
            parameters.setdefault("stop", []).append(value)
        else:
            parameters[command.key] = value
    return parameters, tuple(warnings)
