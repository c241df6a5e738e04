"""Messages as a given template wants them: the same conversation, said so that nothing of it is lost. Pure.

What a template drops or refuses is said in another way, always from left to right, so that a conversation that grows
renders to a prompt that grows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from barrel_inference.chat.tools import instructions
from barrel_inference.chat.tools.syntax import Syntax, write_calls

Message = dict[str, Any]
UNREADABLE = "INVALID_JSON"  # the key that Anthropic proposes for the text of arguments that are none


class Form(NamedTuple):
    """What a template can express. The defaults are the common case."""

    native_calls: bool = False  # the template writes tool calls
    native_definitions: bool = False  # and the definitions of tools
    tool_role: bool = False  # and results
    object_arguments: bool = True  # arguments of calls as objects; else as JSON text
    short_ids: bool = False  # Mistral: exactly nine letters and digits
    typed_content: bool = False  # content as a list of parts, never a string
    parallel_calls: bool = True
    text_beside_calls: bool = True
    system: bool = True
    late_system: bool = True  # a system message stays where it is
    developer: bool = False
    repeated_roles: bool = True  # two user messages may follow each other
    reasoning_key: str | None = None


def conform(messages: Sequence[Mapping[str, Any]], form: Form, syntax: Syntax = instructions.SYNTAX) -> list[Message]:
    """The conversation for a template of that form. ``syntax``: of calls that the template does not write itself."""
    plain = _named({**message, "content": text_of(message.get("content"))} for message in messages)
    plain = _calls_alone(plain, form) if form.native_calls else _calls_as_text(plain, form, syntax)
    result = list(_roles(plain, form))
    if not form.repeated_roles:
        result = _merged(result)
    return [_shaped(message, form) for message in result]


def text_of(content: Any) -> str:
    """Text parts are one text to a template."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if part.get("type") == "text")


def _named(messages: Iterable[Message]) -> Iterator[Message]:
    """Results carry the name of the function that was called: some templates want it."""
    names: dict[str, str] = {}
    for message in _identified(messages):
        names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls") or ()}
        call_id = message.get("tool_call_id")
        known = message["role"] == "tool" and not message.get("name") and call_id in names
        yield {**message, "name": names[call_id]} if known and call_id is not None else message


def _identified(messages: Iterable[Message]) -> Iterator[Message]:
    """Calls without ids are numbered, and their results come in their order: some templates pair them by it."""
    count = 0
    waiting: list[str] = []
    for message in messages:
        if calls := message.get("tool_calls"):
            ids = [call.get("id") or f"call{count + index:05}" for index, call in enumerate(calls)]
            message = {**message, "tool_calls": [{**call, "id": own} for call, own in zip(calls, ids, strict=True)]}
            count += len(calls)
            waiting = ids
        elif message["role"] == "tool" and not message.get("tool_call_id") and waiting:
            message = {**message, "tool_call_id": waiting.pop(0)}
        yield message


def _roles(messages: Iterator[Message], form: Form) -> Iterator[Message]:
    """Developer messages become system messages; system text that would be lost or moved goes to the next user
    message, where it stays."""
    pending: list[str] = []
    head = True
    for message in messages:
        role = message["role"]
        if role == "developer" and not form.developer:
            message, role = {**message, "role": "system"}, "system"
        if role == "system" and not (form.system and (head or form.late_system)):
            pending.append(message["content"])
            continue
        if pending and role != "user":
            yield {"role": "user", "content": "\n\n".join(pending)}
            pending = []
        elif pending:
            message = {**message, "content": "\n\n".join([*pending, message["content"]])}
            pending = []
        head = False
        yield message
    if pending:
        yield {"role": "user", "content": "\n\n".join(pending)}


def _calls_alone(messages: Iterator[Message], form: Form) -> Iterator[Message]:
    """Text beside calls, and the second of several calls, get messages of their own where the template loses them."""
    queue = list(messages)
    while queue:
        message = queue.pop(0)
        calls = message.get("tool_calls") or []
        if not calls:
            yield message
            continue
        if message["content"] and not form.text_beside_calls:
            yield {key: value for key, value in message.items() if key != "tool_calls"}
            message = {key: value for key, value in message.items() if key != "reasoning_content"} | {"content": ""}
        if len(calls) > 1 and not form.parallel_calls:
            yield from _one_by_one(message, calls, queue)
        else:
            yield message


def _one_by_one(message: Message, calls: Sequence[Mapping[str, Any]], queue: list[Message]) -> Iterator[Message]:
    """Each call with its own result behind it; takes the results off the queue."""
    results: list[Message] = []
    while queue and queue[0]["role"] == "tool":
        results.append(queue.pop(0))
    for number, call in enumerate(calls):
        yield {**message, "tool_calls": [call], "content": message["content"] if number == 0 else ""}
        own = [result for result in results if result.get("tool_call_id") == call.get("id")]
        yield from own
        results = [result for result in results if result not in own]
    yield from results


def _calls_as_text(messages: Iterator[Message], form: Form, syntax: Syntax) -> Iterator[Message]:
    """For a template that writes no calls: they are part of the content, and results perhaps what a user says."""
    for message in messages:
        if message["role"] == "tool" and not form.tool_role:
            yield {"role": "user", "content": instructions.result(message["content"])}
        elif message.get("tool_calls"):
            calls = [
                (call["function"]["name"], arguments_of(call["function"].get("arguments")))
                for call in message["tool_calls"]
            ]
            content = "\n".join(filter(None, [message["content"], write_calls(syntax, calls)]))
            yield {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}
        else:
            yield message


def _merged(messages: list[Message]) -> list[Message]:
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last and last["role"] == message["role"] and message["role"] in ("user", "system"):
            last["content"] = f"{last['content']}\n\n{message['content']}"
        else:
            merged.append(dict(message))
    return merged


# ---- the form of a single message


def _shaped(message: Message, form: Form) -> Message:
    shaped = {key: value for key, value in message.items() if key != "reasoning_content" and value is not None}
    if form.typed_content:
        shaped["content"] = [{"type": "text", "text": message["content"]}]
    if form.reasoning_key and message.get("reasoning_content"):
        shaped[form.reasoning_key] = message["reasoning_content"]
    if message.get("tool_calls"):
        shaped["tool_calls"] = [_call(call, form) for call in message["tool_calls"]]
    else:
        shaped.pop("tool_calls", None)
    if form.short_ids and "tool_call_id" in shaped:
        shaped["tool_call_id"] = short_id(shaped["tool_call_id"])
    return shaped


def _call(call: Mapping[str, Any], form: Form) -> dict[str, Any]:
    function = call["function"]
    given = arguments_of(function.get("arguments"))
    return {
        "id": short_id(call.get("id", "")) if form.short_ids else call.get("id", ""),
        "type": "function",
        "function": {
            "name": function["name"],
            "arguments": given if form.object_arguments else json.dumps(given, ensure_ascii=False),
        },
    }


def arguments_of(given: Any) -> dict[str, Any]:
    """Of a call in a history: an object. A call that was cut off has only the beginning of one, and the conversation
    must be able to go on: its text is then all that the object holds."""
    try:
        found = json.loads(given or "{}") if isinstance(given, str) else given or {}
    except (ValueError, RecursionError):
        found = None
    return dict(found) if isinstance(found, Mapping) else {UNREADABLE: given}


def short_id(call_id: str) -> str:
    """Nine letters and digits, the same for the same id."""
    if len(call_id) == 9 and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def described(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Some templates read the description of every tool and parameter without looking whether there is one."""
    function = dict(tool.get("function", tool))
    schema = dict(function.get("parameters") or {"type": "object", "properties": {}})
    schema.setdefault("properties", {})
    schema["properties"] = {
        key: {"description": "", **value} if isinstance(value, Mapping) else value
        for key, value in schema["properties"].items()
    }
    return {"type": "function", "function": {"description": "", **function, "parameters": schema}}
