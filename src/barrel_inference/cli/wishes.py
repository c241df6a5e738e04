"""What ``run`` may wish of an answer beside its words: a form, thoughts, and how long the model stays. Pure, but for
reading a schema's file."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from typer.core import TyperCommand

from barrel_inference.errors import ConfigError, os_reason
from barrel_inference.server.models.keepalive import FOREVER, parse_environment

LEVELS = ("low", "medium", "high", "max")
_SAID = {"true": True, "false": False}


class Wishes(NamedTuple):
    """Under Ollama's names and as its API takes them."""

    format: Any = None  # "json", or a schema
    think: bool | str | None = None
    keep_alive: float | None = None  # seconds; -1: for ever

    def body(self) -> dict[str, Any]:
        """What a request to a server says of them."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def params(self) -> dict[str, Any]:
        """The same for a model in this process, which ends with the command."""
        schema = {"type": "object"} if self.format == "json" else self.format
        given = {"json_schema": schema, "think": self.think}
        return {name: value for name, value in given.items() if value is not None}


NO_WISHES = Wishes()


def wishes(form: str | None, think: str | None, no_think: bool, keep_alive: str | None, *, raw: bool = False) -> Wishes:
    """Of the flags. Raises ConfigError."""
    if think is not None and no_think:
        raise ConfigError("only one of --think, --no-think", option="think")
    if raw and (no_think or think is not None):
        raise ConfigError("--think and --no-think need the chat template, which --raw leaves out", option="think")
    thoughts = False if no_think else _level(think)
    return Wishes(form and _form(form), thoughts, None if keep_alive is None else keep_s("--keepalive", keep_alive))


def _form(text: str) -> Any:
    """The word json, a schema, or the file of one."""
    if text == "json":
        return text
    try:
        schema = json.loads(text if text.lstrip().startswith("{") else Path(text).read_bytes())
    except OSError as error:
        words = f"--format: neither json, nor a JSON schema, nor a file of one: {os_reason(error)}"
        raise ConfigError(words, option="format") from None
    except ValueError as error:
        raise ConfigError(f"--format: not a JSON schema: {error}", option="format") from None
    if not isinstance(schema, dict):
        raise ConfigError("--format: a JSON schema must be an object", option="format")
    return schema


def _level(text: str | None) -> bool | str | None:
    if text is None or text in LEVELS:
        return text
    if text in _SAID:
        return _SAID[text]
    raise ConfigError(f"--think={text}: expected {', '.join(LEVELS)}", option="think", value=text)


def keep_s(flag: str, text: str) -> float:
    """Seconds, -1 for ever. Raises ConfigError."""
    seconds = parse_environment(text, math.nan)
    if math.isnan(seconds):
        raise ConfigError(f"{flag} {text}: write 10m, 1h30m, seconds, or -1 for ever", option="keep_alive")
    return -1.0 if seconds == FOREVER else seconds


class Command(TyperCommand):
    """``--think`` may stand without a level."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_levels(args))


def with_levels(arguments: list[str]) -> list[str]:
    """A prompt behind ``--think`` is not its level."""
    pairs = pairwise([*arguments, ""])
    return ["--think=true" if word == "--think" and after not in (*LEVELS, *_SAID) else word for word, after in pairs]
