"""Anthropic's requests to neutral ones. Pure: what cannot be honoured raises, naming the field."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from barrel_inference.chat import schema
from barrel_inference.errors import InvalidRequestError, UnsupportedError
from barrel_inference.server import neutral
from barrel_inference.server.anthropic import wire
from barrel_inference.types import Constraint, Message


def count(body: wire.CountRequest) -> neutral.ChatRequest:
    return neutral.ChatRequest(
        model=body.model,
        messages=(*_system(body.system), *_messages(body.messages)),
        tools=tuple(map(_tool, body.tools or ())),
        tool_choice=_tool_choice(body.tool_choice),
        parallel_tool_calls=not (body.tool_choice and body.tool_choice.disable_parallel_tool_use),
        think=_think(body),
        think_if_able=True,  # agents ask every model
        continue_final=bool(body.messages) and body.messages[-1].role == "assistant",
    )


def messages(body: wire.MessagesRequest, *, keep_alive: bool = False) -> neutral.ChatRequest:
    _refuse_unsupported(body)
    return msgspec.structs.replace(
        count(body),
        constraint=_constraint(body),
        think_budget=_budget(body),
        options=_options(body),
        keep_alive=body.keep_alive if keep_alive else None,
    )


def _refuse_unsupported(body: wire.MessagesRequest) -> None:
    if not body.messages:
        raise InvalidRequestError("messages: at least one message is required", option="messages")
    for name in ("mcp_servers", "container"):
        if getattr(body, name):
            raise UnsupportedError(f"{name}: not supported", option=name)
    if body.temperature is not None and not 0 <= body.temperature <= 1:
        raise InvalidRequestError("temperature: must be between 0 and 1", option="temperature")


def _options(body: wire.MessagesRequest) -> dict[str, Any]:
    options: dict[str, Any] = {"max_tokens": body.max_tokens}
    for name in ("temperature", "top_p", "top_k"):
        if (value := getattr(body, name)) is not None:
            options[name] = value
    if body.stop_sequences:
        options["stop"] = tuple(each for each in body.stop_sequences if each)
    return options


def _constraint(body: wire.CountRequest) -> Constraint | None:
    form = body.output_format or (body.output_config and body.output_config.format)
    return schema.constraint(form.schema) if form else None


def _think(body: wire.CountRequest) -> neutral.Think:
    """Thinking happens when it is asked for."""
    asked = body.thinking
    if asked is None or asked.type == "disabled":
        return False
    effort: Any = body.output_config and body.output_config.effort
    return {"xhigh": "max"}.get(effort, effort) if effort else True


def _budget(body: wire.MessagesRequest) -> int | None:
    if body.thinking is None or body.thinking.type != "enabled":
        return None
    budget = body.thinking.budget_tokens
    if budget is not None and budget >= body.max_tokens:
        raise InvalidRequestError("thinking.budget_tokens: must be less than max_tokens", option="thinking")
    return budget


def _tool(tool: wire.ToolIn) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise UnsupportedError(f"tools: {tool.type} is run by Anthropic and not supported here", option="tools")
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    parameters = tool.input_schema or {"type": "object", "properties": {}}
    return {"type": "function", "function": function | {"parameters": parameters}}


def _tool_choice(choice: wire.ToolChoice | None) -> neutral.ToolChoice:
    match choice:
        case None | wire.ToolChoice(type="auto"):
            return neutral.ToolChoice()
        case wire.ToolChoice(type="any"):
            return neutral.ToolChoice(mode="required")
        case wire.ToolChoice(type="none"):
            return neutral.ToolChoice(mode="none")
    if not choice.name:
        raise InvalidRequestError("tool_choice.name: required with type tool", option="tool_choice")
    return neutral.ToolChoice(mode="named", name=choice.name)


# ---- messages


def _system(system: str | Sequence[wire.TextBlock] | None) -> Iterable[Message]:
    texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
    if any(texts):
        yield Message(role="system", content="\n\n".join(texts))


def _messages(messages: Sequence[wire.MessageIn]) -> Iterable[Message]:
    for message in messages:
        blocks = message.content
        if isinstance(blocks, str):
            yield Message(role=message.role, content=blocks)
        elif message.role == "assistant":
            yield _assistant(blocks)
        else:
            yield from _user(message.role, blocks)


def _assistant(blocks: Sequence[wire.BlockIn]) -> Message:
    texts, thoughts, calls = [], [], []
    for block in blocks:
        match block:
            case wire.TextBlock(text=text):
                texts.append(text)
            case wire.ThinkingBlock(thinking=thinking):
                thoughts.append(thinking)
            case wire.RedactedThinkingBlock():
                pass  # encrypted by another: nothing of it can be read
            case wire.ToolUseBlock(id=call_id, name=name, input=given):
                function = {"name": name, "arguments": json.dumps(given, ensure_ascii=False)}
                calls.append({"id": call_id, "type": "function", "function": function})
            case _:
                raise _unreadable(block, "an assistant message")
    return Message(
        role="assistant",
        content="".join(texts),
        reasoning_content="\n".join(thoughts) or None,
        tool_calls=tuple(calls),
    )


def _user(role: str, blocks: Sequence[wire.BlockIn]) -> Iterable[Message]:
    """Tool results first, as they answer the calls before; then what the user says."""
    texts: list[str] = []
    for block in blocks:
        match block:
            case wire.ToolResultBlock(tool_use_id=call_id, content=content, is_error=is_error):
                text = content if isinstance(content, str) else "\n".join(map(_text, content))
                yield Message(role="tool", content=f"Error: {text}" if is_error else text, tool_call_id=call_id)
            case _:
                texts.append(_text(block))
    if texts:
        yield Message(role=role, content="\n".join(texts))


def _text(block: Any) -> str:
    match block:
        case wire.TextBlock(text=text):
            return text
        case wire.SearchResultBlock(content=content, title=title, source=source):
            return "\n".join([f"{title} ({source})", *(part.text for part in content)])
        case wire.DocumentBlock(source={"type": "text", "data": str(data)}, title=title):
            return f"{title}\n{data}" if title else data
    raise _unreadable(block, "a message")


def _unreadable(block: Any, where: str) -> UnsupportedError:
    return UnsupportedError(f"messages: a block of type {block.__struct_config__.tag} cannot be read in {where}")
