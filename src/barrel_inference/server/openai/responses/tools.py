"""Tools of the Responses API, which are of many kinds, as functions, which are all that models call; and back. Pure.

A custom tool is a function whose one argument is a text; a tool in a namespace has its namespace in its name. Tools
that only OpenAI runs are left out where the client has brought others, as agents do; alone they are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from barrel_inference.errors import InvalidRequestError, UnsupportedError
from barrel_inference.server import neutral
from barrel_inference.server.openai.responses.wire import NamedTool

INPUT = "input"  # the argument of a custom tool
_SEPARATOR = "__"


class Known(NamedTuple):
    """A tool by the names that its client has for it."""

    name: str
    namespace: str | None = None
    custom: bool = False


class Tools(NamedTuple):
    """``functions`` in neutral form. ``known``: what a client calls each of them. ``unheeded``: parts of the request
    that have no effect."""

    functions: tuple[dict[str, Any], ...] = ()
    known: Mapping[str, Known] = {}
    unheeded: tuple[str, ...] = ()

    def only(self, names: Iterable[str]) -> Tools:
        wanted = set(names)
        return self._replace(functions=tuple(each for each in self.functions if each["function"]["name"] in wanted))


def read(given: Iterable[Mapping[str, Any]]) -> Tools:
    """Raises UnsupportedError and InvalidRequestError, naming what cannot be."""
    functions: list[dict[str, Any]] = []
    known: dict[str, Known] = {}
    hosted: list[str] = []
    unheeded: list[str] = []
    for tool, namespace in _flat(given):
        kind = tool.get("type")
        if kind not in ("function", "custom"):
            hosted.append(str(kind))
            continue
        name = function_name(_name(tool), namespace)
        function = _custom(tool) if kind == "custom" else _function(tool)
        functions.append({"type": "function", "function": {"name": name, **function}})
        known[name] = Known(_name(tool), namespace, kind == "custom")
        if kind == "custom" and _grammar(tool).get("syntax") == "lark":
            unheeded.append(f"tools.{name}.format")
    if hosted and not functions:
        raise UnsupportedError(f"tools of type {hosted[0]!r} are not supported", option="tools")
    return Tools(tuple(functions), known, (*unheeded, *(f"tools.{kind}" for kind in hosted)))


def function_name(name: str, namespace: Any) -> str:
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace.removesuffix(_SEPARATOR)}{_SEPARATOR}{name}"


def chosen(choice: Any, tools: Tools) -> tuple[neutral.ToolChoice, Tools]:
    """What is to be called, and the tools that may be. Raises UnsupportedError."""
    match choice:
        case None:
            return neutral.ToolChoice(), tools
        case NamedTool(type="allowed_tools", mode="auto" | "required" as mode, tools=list(allowed)):
            names = [_chosen_name(each) for each in allowed]
            return neutral.ToolChoice(mode=mode), tools.only(names)
        case NamedTool(type="function" | "custom", name=str(name), namespace=namespace):
            return neutral.ToolChoice(mode="named", name=function_name(name, namespace)), tools
        case NamedTool(type=kind):
            raise UnsupportedError(f"tool_choice of type {kind!r} is not supported", option="tool_choice")
    return neutral.ToolChoice(mode=choice), tools


def _chosen_name(tool: Mapping[str, Any]) -> str:
    if tool.get("type") not in ("function", "custom") or not isinstance(tool.get("name"), str):
        raise UnsupportedError(f"tool_choice of type {tool.get('type')!r} is not supported", option="tool_choice")
    return function_name(tool["name"], tool.get("namespace"))


def _flat(given: Iterable[Mapping[str, Any]], namespace: str | None = None) -> Iterator[tuple[Mapping[str, Any], Any]]:
    for tool in given:
        if tool.get("type") == "namespace" and namespace is None:
            yield from _flat(within(tool), _name(tool))
        else:
            yield tool, namespace


def within(what: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The tools of a namespace, or of an item of the input. Raises InvalidRequestError."""
    found = what.get("tools")
    if isinstance(found, list) and all(isinstance(each, Mapping) for each in found):
        return found
    raise InvalidRequestError(f"{what.get('type')} needs a list of tools", option="tools")


def _name(tool: Mapping[str, Any]) -> str:
    name = tool.get("name")
    if isinstance(name, str) and re.fullmatch(neutral.TOOL_NAME, name):
        return name
    raise InvalidRequestError(
        f"a tool of type {tool.get('type')!r} needs a name that matches {neutral.TOOL_NAME}", option="tools"
    )


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {key: tool[key] for key in ("description", "strict") if tool.get(key) is not None}
    parameters = tool.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise InvalidRequestError(f"the parameters of {tool['name']!r} are not a JSON schema", option="tools")
    return function | {"parameters": parameters}


# ---- custom tools


def _custom(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A regular expression is enforced; a grammar inside of a JSON text cannot be, so the model is told of it."""
    grammar = _grammar(tool)
    text: dict[str, Any] = {"type": "string"}
    words = [tool["description"]] if isinstance(tool.get("description"), str) else []
    if grammar.get("syntax") == "regex":
        text["pattern"] = f"^(?:{grammar.get('definition', '')})$"
    elif grammar:
        words.append(f"The input follows this grammar:\n{grammar.get('definition', '')}")
    parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
    return {"description": "\n\n".join(words), "parameters": parameters}


def _grammar(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Empty for any text."""
    form = tool.get("format")
    return form if isinstance(form, Mapping) and form.get("type") == "grammar" else {}


def arguments_of(text: str) -> str:
    """Of the function that stands for a custom tool."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def input_of(arguments: str) -> str:
    """Of a custom tool; the arguments as they stand when they were cut off."""
    try:
        return str(json.loads(arguments)[INPUT])
    except (ValueError, KeyError, TypeError):
        return arguments
