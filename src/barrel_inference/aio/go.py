"""Ollama's Go templates in the place of a model's Jinja one. Immutable."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from typing import Any

from barrel_inference.chat.templates.template import ChatTemplate, Messages
from barrel_inference.registry import gotemplate


class GoTemplate(ChatTemplate):
    """Raises TemplateError when it cannot be parsed. A Go template always ends where the answer begins, so that
    ``add_generation_prompt`` says nothing to it."""

    def __init__(self, source: str, *, today: Callable[[], datetime.date] = datetime.date.today) -> None:
        self.name = "go"
        self.source = source
        self._template = gotemplate.Template(source)
        self.variables = frozenset({"thinking"} if "Think" in self._template.fields else ())
        self._today = today

    def text(self, messages: Messages, **values: Any) -> str:
        return self._template.render_chat(
            [_message(message) for message in messages],
            tools=values.get("tools"),
            think=values.get("thinking"),
            today=self._today(),
        )


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Ollama's fields: arguments of calls are objects."""
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    return {**message, "tool_calls": calls} if calls else dict(message)


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    given = function.get("arguments")
    return {**call, "function": {**function, "arguments": json.loads(given) if isinstance(given, str) else given}}
