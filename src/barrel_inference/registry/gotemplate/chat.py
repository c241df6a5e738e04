"""A chat through a Go template, as Ollama does it, with one difference: system messages stay where they are (only the
leading ones become ``.System``), so that the next turn's prompt begins with this one's. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from barrel_inference.registry.gotemplate.evaluate import Evaluator, Struct
from barrel_inference.registry.gotemplate.parse import Tree

Message = Mapping[str, Any]


def render_chat(
    tree: Tree,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    think: bool | str | None,
    today: datetime.date,
) -> str:
    """The prompt up to where the assistant's answer begins. Messages have Ollama's fields (role, content, …)."""
    collated = collate(messages)
    common = _think(think)
    if "Messages" not in tree.fields():
        return _render_turns(tree, collated, common, today)
    values = {
        "System": _leading_system(collated),
        "Messages": [_message(message) for message in collated],
        "Tools": [_tool(tool) for tool in tools or ()],
        "Response": "",
        **common,
    }
    return Evaluator(tree, today).run(values)


def render_prompt(
    tree: Tree,
    prompt: str,
    *,
    system: str = "",
    suffix: str = "",
    think: bool | str | None = None,
    today: datetime.date,
) -> str:
    """One prompt without a chat: for generate, also with a suffix to fill in the middle."""
    if suffix:
        values = {"Prompt": prompt, "Suffix": suffix, "Response": "", "System": system, **_think(think)}
        return Evaluator(tree, today).run(values)
    messages = ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": prompt}]
    return render_chat(tree, messages, tools=None, think=think, today=today)


def collate(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Consecutive messages of one role become one; tool results stay apart."""
    collated: list[dict[str, Any]] = []
    for message in messages:
        last = collated[-1] if collated else None
        plain = not message.get("tool_calls") and not (last or {}).get("tool_calls")
        if last and last["role"] == message["role"] and message["role"] != "tool" and plain:
            last["content"] = f"{last['content']}\n\n{message.get('content') or ''}"
        else:
            collated.append({**message, "content": message.get("content") or ""})
    return collated


def _leading_system(messages: Sequence[Message]) -> str:
    return str(messages[0]["content"]) if messages and messages[0]["role"] == "system" else ""


def _render_turns(tree: Tree, messages: Sequence[Message], common: dict[str, Any], today: datetime.date) -> str:
    """Templates without ``.Messages`` are run once a turn; the last run stops where the answer goes."""
    output: list[str] = []
    turn = {"System": "", "Prompt": "", "Response": ""}
    slots = {"system": "System", "user": "Prompt", "assistant": "Response"}
    for message in messages:
        slot = slots.get(str(message["role"]))
        if slot is None:
            continue
        if any(turn[later] for later in tuple(turn)[tuple(turn).index(slot) :]):
            output.append(Evaluator(tree, today).run({**turn, **common}))
            turn = dict.fromkeys(turn, "")
        turn[slot] = str(message["content"])
    output.append(Evaluator(tree, today, cut_field="Response").run({**turn, **common}))
    return "".join(output)


def _think(think: bool | str | None) -> dict[str, Any]:
    level = think if isinstance(think, str) else ""
    return {"Think": bool(think), "ThinkLevel": level, "IsThinkSet": think is not None}


def _message(message: Message) -> Struct:
    thinking = message.get("thinking") or message.get("reasoning_content") or ""
    calls = [_tool_call(index, call) for index, call in enumerate(message.get("tool_calls") or ())]
    name = message.get("tool_name") or message.get("name") or ""
    return Struct({**message, "thinking": thinking, "tool_calls": calls, "tool_name": name})


def _tool_call(index: int, call: Mapping[str, Any]) -> Struct:
    function = call.get("function") or {}
    named = Struct({"index": function.get("index", index), **function, "arguments": function.get("arguments") or {}})
    return Struct({**call, "function": named})


def _tool(tool: Mapping[str, Any]) -> Struct:
    """Structs where Ollama has them: the tool, its function, the parameters, each property."""
    function = dict(tool.get("function") or {})
    parameters = dict(function.get("parameters") or {})
    properties = parameters.get("properties") or {}
    parameters["properties"] = {key: Struct(value) for key, value in properties.items() if isinstance(value, Mapping)}
    return Struct({**tool, "function": Struct({**function, "parameters": Struct(parameters)})})
