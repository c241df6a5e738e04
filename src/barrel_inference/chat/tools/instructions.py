"""Tools for models whose template knows none, or does not tell of them: what is added to the system message. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from barrel_inference.chat.tools.families import hermes
from barrel_inference.chat.tools.syntax import Syntax, write_calls

SYNTAX = hermes.SYNTAX

_TEXT = """\
# Tools

You can call these functions, one JSON description a line:
<tools>
{definitions}
</tools>

To call a function, write only this, with the name and the arguments filled in:
{example}
Call a function when it helps to answer; otherwise answer in plain text."""


def explain(tools: Sequence[Mapping[str, Any]], syntax: Syntax = SYNTAX) -> str:
    """``syntax``: the one that the model knows, if its template knows calls but does not tell of the tools."""
    definitions = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return _TEXT.format(definitions=definitions, example=write_calls(syntax, [("NAME", {"ARGUMENT": "VALUE"})]))


def result(content: str) -> str:
    return f"<tool_response>\n{content}\n</tool_response>"
