"""Tools for models whose template knows none, or does not tell of them: what is added to the system message. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from barrel_inference.chat.tools.families import hermes
from barrel_inference.chat.tools.syntax import Syntax

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
    return _TEXT.format(definitions=definitions, example=_example(syntax))


def _example(syntax: Syntax) -> str:
    header = syntax.header_pattern.fill(name="NAME", index="0", id="ID")
    body = "{ARGUMENTS}" if "{name}" in syntax.header else '{"name": "NAME", "arguments": {ARGUMENTS}}'
    begin, end = syntax.section
    return f"{begin}{header}{body}{syntax.footer.rstrip()}{end}"


def call(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments")
    given = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    body = json.dumps({"name": function["name"], "arguments": given}, ensure_ascii=False)
    return f"{SYNTAX.header}{body}{SYNTAX.footer.rstrip()}"


def result(content: str) -> str:
    return f"<tool_response>\n{content}\n</tool_response>"
