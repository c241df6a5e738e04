"""Ollama's requests to the neutral ones. Raises InvalidRequestError with Ollama's words where it has some.

Pure, but for noting in the request's record which options nobody knows.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from barrel_inference.errors import InvalidRequestError, UnsupportedError
from barrel_inference.server import neutral
from barrel_inference.server.http import record
from barrel_inference.server.models.parameters import OLLAMA_DEFAULTS, Parameters, translate
from barrel_inference.server.ollama import wire
from barrel_inference.types import Constraint, Message

ANY_OBJECT = '{"type":"object"}'
LEVELS = ("high", "medium", "low", "max", "minimal")


def named(model: str) -> str:
    if not model:
        raise InvalidRequestError("model is required", option="model")
    return model


def wish(parameters: Parameters) -> Parameters:
    """How to load, and the defaults below a model's own parameters."""
    return parameters._replace(request=OLLAMA_DEFAULTS)


def options(given: wire.Json | None) -> Parameters:
    """Of a request. Names that nobody knows are reported in a header of the answer."""
    found = translate(given or {})
    record.current().ignored += found.ignored
    return found


def parameters(request: wire.Generating) -> Parameters:
    """The options of a request, with the logprobs and the cache fields that stand beside them."""
    found = options(request.options)
    asked = dict(found.request)
    top = request.top_logprobs or 0
    if not 0 <= top <= 20:
        raise InvalidRequestError("top_logprobs must be between 0 and 20", option="top_logprobs")
    if request.logprobs:
        asked |= {"logprobs": True, "top_logprobs": top}
    given = {"cache": request.cache, "session": request.session, "parent_key": request.parent_key}
    asked |= {name: value for name, value in given.items() if value is not None}
    return found._replace(request=asked)


def truncates(request: wire.Generating) -> bool:
    """Whether old messages of a conversation that is too long are left out, which the answer then says."""
    return request.truncate is not False


def shifts(request: wire.Generating) -> bool:
    """Whether an answer goes on when the context is full."""
    return request.shift is not False


def cuts(request: wire.Generating) -> bool:
    """Whether a prompt that is too long loses its middle, which the answer then says; else it is refused."""
    return truncates(request) and shifts(request)


# ---- chat


def chat(request: wire.ChatRequest, found: Parameters) -> neutral.ChatRequest:
    messages = tuple(message(each, request.model) for each in request.messages or ())
    return neutral.ChatRequest(
        model=request.model,
        messages=messages,
        tools=tuple(_tool(each) for each in request.tools or ()),
        constraint=constraint(request.format),
        think=think(request.think),
        options=found.request,
        truncate=truncates(request),
        keep_alive=request.keep_alive,
        continue_final=bool(messages) and messages[-1].role == "assistant",
    )


def message(said: wire.ChatMessage, model: str) -> Message:
    role = said.role.lower()
    if role not in ("system", "user", "assistant", "tool", "developer"):
        raise InvalidRequestError(f'invalid role: "{said.role[:40]}" (must be system, user, assistant or tool)')
    no_images(said.images, model)
    return Message(
        role=role,
        content=said.content or "",
        reasoning_content=said.thinking or None,
        tool_calls=tuple(_call(call) for call in said.tool_calls or ()),
        tool_call_id=said.tool_call_id or None,
        name=said.tool_name or None,
    )


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function", tool)
    is_function = isinstance(function, dict) and isinstance(function.get("name"), str)
    if not is_function or not isinstance(function.get("parameters") or {}, dict):
        raise InvalidRequestError(
            'tools: each is a function with a name, {"type": "function", "function": {"name", "parameters"}}',
            option="tools",
        )
    return tool


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequestError('tool_calls: each needs a function with a name, {"function": {"name", "arguments"}}')
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        raise InvalidRequestError("tool_calls: arguments is a JSON object, not a string")
    call_id = call.get("id") or ""
    if not isinstance(call_id, str):
        raise InvalidRequestError("tool_calls: an id is a string")
    named = {"name": function["name"], "arguments": arguments or {}}
    return {"id": call_id, "type": "function", "function": named}


def no_images(images: list[str] | None, model: str) -> None:
    if images:
        raise UnsupportedError(f"{model} does not support vision", capability="vision")


# ---- generate


def generate(request: wire.GenerateRequest, found: Parameters) -> neutral.ChatRequest:
    """A prompt as a conversation of one message, behind the system message if there is one."""
    said = [Message(role="user", content=request.prompt or "")]
    if request.system:  # Ollama's own clients send "" for none
        said.insert(0, Message(role="system", content=request.system))
    return neutral.ChatRequest(
        model=request.model,
        messages=tuple(said),
        constraint=constraint(request.format),
        think=think(request.think),
        chat_template=request.template or None,
        options=found.request,
        truncate=truncates(request),
        context=tuple(request.context or ()),
        keep_alive=request.keep_alive,
    )


def raw(request: wire.GenerateRequest, found: Parameters) -> neutral.CompletionRequest:
    """A prompt as it is: with ``raw``, or with a suffix."""
    shape = constraint(request.format)
    given = {} if shape is None else {"json_schema": shape.json_schema}
    return neutral.CompletionRequest(
        model=request.model,
        prompt=request.prompt or "",
        suffix=request.suffix or None,
        options=found.request | given,
        truncate=cuts(request),
        keep_alive=request.keep_alive,
    )


def check_raw(request: wire.GenerateRequest) -> None:
    if request.raw and (request.template or request.system or request.context):
        raise InvalidRequestError("raw mode does not support template, system, or context")


# ---- parts


def constraint(format: Any) -> Constraint | None:
    if format is None or format == "":
        return None
    if format == "json":
        return Constraint(json_schema=ANY_OBJECT)
    if isinstance(format, dict):
        return Constraint(json_schema=msgspec.json.encode(format).decode())
    shown = json.dumps(format)[:200]
    raise InvalidRequestError(
        f'invalid format: {shown}; expected "json" or a valid JSON Schema object', option="format"
    )


def think(value: Any) -> neutral.Think:
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return value
    if value in LEVELS:
        return value  # type: ignore[no-any-return]
    shown = str(value)[:80]
    raise InvalidRequestError(
        f'invalid think value: "{shown}" (must be "high", "medium", "low", "max", true, or false)', option="think"
    )


def inputs(value: Any) -> tuple[str, ...]:
    """Of an embed request: one text or several. None, or one that is empty, only loads."""
    if value is None or value == "":
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequestError("invalid input type", option="input")
    return tuple(texts)
