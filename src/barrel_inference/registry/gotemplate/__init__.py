"""Ollama's Go templates, as far as registry models use them: ``Template(source)`` renders chats and prompts. A sandbox
with limits on steps, output and depth; no code of the template's own ever runs."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

from barrel_inference.errors import TemplateError
from barrel_inference.registry.gotemplate import chat
from barrel_inference.registry.gotemplate.parse import parse

__all__ = ["Template", "check", "is_go"]

_GO_ACTION = re.compile(r"\{\{-?\s*(\.|\$|/\*|\(|(if|else|end|range|with|define|template|block|json|currentDate)\b)")


class Template:
    """A parsed template; ``TemplateError`` if it cannot be."""

    def __init__(self, source: str) -> None:
        self._tree = parse(source)

    @property
    def fields(self) -> frozenset[str]:
        """Names the template mentions: Tools, Suffix, Thinking … tell what the model can do."""
        return self._tree.fields()

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        think: bool | str | None = None,
        today: datetime.date,
    ) -> str:
        """The prompt for the next answer. Messages and tools have Ollama's JSON fields."""
        return chat.render_chat(self._tree, messages, tools=tools, think=think, today=today)

    def render_prompt(
        self, prompt: str, *, system: str = "", suffix: str = "", think: bool | str | None = None, today: datetime.date
    ) -> str:
        """The same for one prompt, or for the gap between ``prompt`` and ``suffix``."""
        return chat.render_prompt(self._tree, prompt, system=system, suffix=suffix, think=think, today=today)


def is_go(source: str) -> bool:
    """Whether a TEMPLATE is Go's rather than Jinja: Jinja's statements are unmistakable, Go's actions nearly so."""
    return "{%" not in source and bool(_GO_ACTION.search(source))


def check(source: str) -> None:
    """``TemplateError`` unless the template can be parsed as what it seems to be."""
    if is_go(source):
        parse(source)
        return
    import jinja2

    try:
        jinja2.Environment().parse(source)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"template error: line {error.lineno}: {error.message}") from None
    except (RecursionError, ValueError) as error:  # nested too deeply, a number with too many digits
        raise TemplateError(f"template error: {error}") from None
