"""Requests of the Responses API to neutral ones. Pure: what cannot be honoured raises, naming the parameter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from barrel_inference.chat import schema
from barrel_inference.chat.messages import arguments_of
from barrel_inference.errors import InvalidRequestError, UnsupportedError
from barrel_inference.server import neutral
from barrel_inference.server.openai.responses import tools
from barrel_inference.server.openai.responses.wire import ResponseRequest, TextFormat
from barrel_inference.server.openai.translate import EFFORTS, check_ranges
from barrel_inference.server.thoughts import unpack
from barrel_inference.types import Constraint, Message

ADDED = "additional_tools"
_CALLS = {"function_call": "arguments", "custom_tool_call": tools.INPUT}
_RESULTS = ("function_call_output", "custom_tool_call_output")
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def request(body: ResponseRequest, history: Sequence[Message], *, keep_alive: bool = False) -> neutral.ChatRequest:
    """``history``: of the response before; this request's instructions stand before it."""
    _refuse_unsupported(body)
    choice, found = tools.chosen(body.tool_choice, tools_of(body))
    head = [Message(role="system", content=body.instructions)] if body.instructions else []
    return neutral.ChatRequest(
        model=body.model,
        messages=(*head, *history, *messages(items(body))),
        tools=found.functions,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        constraint=_constraint(body.text.format if body.text else None),
        think=_think(body),
        options=_options(body),
        truncate=body.truncation == "auto",
        keep_alive=body.keep_alive if keep_alive else None,
    )


def items(body: ResponseRequest) -> list[dict[str, Any]]:
    """The input as items."""
    if isinstance(body.input, str):
        return [{"type": "message", "role": "user", "content": body.input}]
    return body.input


def tools_of(body: ResponseRequest) -> tools.Tools:
    """Those beside the input and those in it. Raises UnsupportedError and InvalidRequestError."""
    added = [tool for item in items(body) if item.get("type") == ADDED for tool in tools.within(item)]
    return tools.read([*(body.tools or ()), *added])


def messages(found: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Reasoning, text and calls that follow each other are one message of the assistant."""
    result: list[Message] = []
    turn: dict[str, Any] = {}

    def end_turn() -> None:
        if turn:
            calls = tuple(turn.get("calls", ()))
            said = {key: turn[key] for key in ("content", "reasoning_content") if turn.get(key)}
            result.append(Message(role="assistant", tool_calls=calls, **{"content": "", **said}))
            turn.clear()

    for item in found:
        kind = str(item.get("type") or "message")
        if kind == "message" and item.get("role") == "assistant":
            turn["content"] = "\n".join(filter(None, [turn.get("content"), _text(item.get("content"))]))
        elif kind == "reasoning":
            if turn.get("content") or turn.get("calls"):
                end_turn()
            turn["reasoning_content"] = _thought(item)
        elif kind in _CALLS:
            turn.setdefault("calls", []).append(_call(kind, item))
        elif kind != ADDED:
            end_turn()
            result.append(_other(kind, item))
    end_turn()
    return result


def _other(kind: str, item: Mapping[str, Any]) -> Message:
    if kind in _RESULTS:
        return Message(role="tool", content=_text(item.get("output")), tool_call_id=str(item.get("call_id", "")))
    if kind == "message" and item.get("role") in ("user", "system", "developer"):
        return Message(role=item["role"], content=_text(item.get("content")))
    raise UnsupportedError(f"input items of type {kind!r} are not supported", option="input")


def _thought(item: Mapping[str, Any]) -> str:
    """Encrypted ones of others are left out: nothing of them can be read."""
    packed = item.get("encrypted_content")
    shown = _text(item.get("content")) or _text(item.get("summary"))
    return shown or (unpack(packed) if isinstance(packed, str) else None) or ""


def _call(kind: str, item: Mapping[str, Any]) -> dict[str, Any]:
    name, given = item.get("name"), item.get(_CALLS[kind])
    arguments = tools.arguments_of(str(given or "")) if kind == "custom_tool_call" else _object(given)
    if not isinstance(name, str):
        raise InvalidRequestError(f"a {kind} needs a name", option="input")
    function = {"name": tools.function_name(name, item.get("namespace")), "arguments": arguments}
    return {"id": str(item.get("call_id", "")), "type": "function", "function": function}


def _object(arguments: Any) -> str:
    """JSON text of an object as we write it."""
    return json.dumps(arguments_of(arguments), ensure_ascii=False)


def _text(content: Any) -> str:
    if isinstance(content, str | None):
        return content or ""
    if not isinstance(content, list):
        raise InvalidRequestError("the content of an input item must be a string or a list of parts", option="input")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "refusal":
            texts.append(str(part.get("refusal", "")))
        elif kind in _TEXT_PARTS:
            texts.append(str(part.get("text", "")))
        else:
            raise UnsupportedError(f"this model reads text only, not {kind}", option="input")
    return "\n".join(texts)


def _refuse_unsupported(body: ResponseRequest) -> None:
    for name in ("background", "conversation", "prompt", "context_management", "moderation"):
        if getattr(body, name):
            raise UnsupportedError(f"{name} is not supported", option=name)
    if body.text and body.text.verbosity not in (None, "medium"):
        raise UnsupportedError("text.verbosity is not supported", option="text")
    if body.reasoning and body.reasoning.mode not in (None, "standard"):
        raise UnsupportedError(f"reasoning.mode {body.reasoning.mode!r} is not supported", option="reasoning")
    if body.reasoning and body.reasoning.context == "current_turn":
        raise UnsupportedError("reasoning.context 'current_turn' is not supported", option="reasoning")
    if not body.input and not body.previous_response_id:
        raise InvalidRequestError("input is missing", option="input")


def _constraint(form: TextFormat | None) -> Constraint | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return schema.any_object()
    if form.schema is None:
        raise InvalidRequestError("text.format.schema is missing", option="text")
    return schema.constraint(form.schema)


def _think(body: ResponseRequest) -> neutral.Think:
    effort: Any = body.reasoning and body.reasoning.effort
    return EFFORTS.get(effort, effort)


def _options(body: ResponseRequest) -> dict[str, Any]:
    check_ranges(body)
    options: dict[str, Any] = {}
    for theirs, ours in (("max_output_tokens", "max_tokens"), ("temperature", "temperature"), ("top_p", "top_p")):
        if (value := getattr(body, theirs)) is not None:
            options[ours] = value
    if body.top_logprobs or "message.output_text.logprobs" in (body.include or ()):
        options |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    return options
