"""Anthropic's requests to neutral ones. Pure: what cannot be honoured raises, naming the field."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from barrel_inference.chat import schema
from barrel_inference.errors import InvalidRequestError, UnsupportedError
from barrel_inference.server import neutral
from barrel_inference.server.anthropic import content, wire
from barrel_inference.types import Constraint

NO_THREADS = "thread_unsupported_request"  # clients that read this send the whole conversation instead


def messages(body: wire.MessagesRequest, *, keep_alive: bool = False) -> neutral.ChatRequest:
    return msgspec.structs.replace(
        count(body),
        constraint=_constraint(body),
        think_budget=_budget(body),
        options=_options(body),
        keep_alive=body.keep_alive if keep_alive else None,
    )


def count(body: wire.CountRequest) -> neutral.ChatRequest:
    """As much of the request as its prompt depends on."""
    _refuse_unsupported(body)
    choice = body.tool_choice
    asked = neutral.ChatRequest(
        model=body.model,
        messages=(*content.system(body.system), *content.conversation(body.messages)),
        tools=tuple(_tool(tool, index) for index, tool in enumerate(body.tools or ())),
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=not (choice and choice.disable_parallel_tool_use),
        think=_think(body),
        think_if_able=True,
        continue_final=body.messages[-1].role == "assistant",
    )
    if asked.continue_final:
        _check_beginning(asked)
    return asked


def marks_cache(body: wire.CountRequest) -> bool:
    """Whether a ``cache_control`` stands anywhere."""
    marked: list[Any] = [body, *(body.tools or ()), *content.blocks(body.system)]
    marked += [block for message in body.messages for block in content.blocks(message.content)]
    return any(each.cache_control is not None for each in marked)


def unheeded(body: wire.CountRequest) -> tuple[str, ...]:
    """What is accepted and has no effect on an answer, though it was meant to."""
    given = [block for message in body.messages for block in content.blocks(message.content)]
    asked = [getattr(block, "citations", None) for block in given]
    return ("citations",) if any(isinstance(each, dict) and each.get("enabled") is True for each in asked) else ()


def hides_thinking(body: wire.CountRequest) -> bool:
    return body.thinking is not None and body.thinking.display == "omitted"


def _refuse_unsupported(body: wire.CountRequest) -> None:
    if not body.messages:
        raise InvalidRequestError("messages: at least one message is required", option="messages")
    for name in ("mcp_servers", "container", "compaction"):
        if getattr(body, name):
            raise UnsupportedError(f"{name}: not supported by this server", option=name)
    if body.thread:
        raise UnsupportedError("thread: this server keeps no conversations", option="thread", error_code=NO_THREADS)


def _check_beginning(asked: neutral.ChatRequest) -> None:
    """Of the answer, which is the last message."""
    if asked.messages[-1].tool_calls:
        raise InvalidRequestError("messages: the last tool_use has no tool_result after it", option="messages")
    if asked.think:
        raise InvalidRequestError(
            "messages: the last message must not be the assistant's when thinking is enabled", option="messages"
        )


# ---- options


def _options(body: wire.MessagesRequest) -> dict[str, Any]:
    options: dict[str, Any] = {"max_tokens": body.max_tokens}
    for name in ("temperature", "top_p", "top_k"):
        if (value := getattr(body, name)) is not None:
            options[name] = value
    if body.stop_sequences:
        options["stop"] = tuple(body.stop_sequences)
    return options


def _constraint(body: wire.CountRequest) -> Constraint | None:
    form = body.output_format or (body.output_config and body.output_config.format)
    return schema.constraint(form.schema) if form else None


def _think(body: wire.CountRequest) -> neutral.Think:
    """Thinking happens when it is asked for; the effort says how much."""
    asked = body.thinking.type if body.thinking else "disabled"
    if asked == "disabled" or (asked == "between_tools" and not _follows_a_tool(body)):
        return False
    effort: Any = body.output_config and body.output_config.effort
    return {"xhigh": "max"}.get(effort, effort) if effort else True


def _budget(body: wire.MessagesRequest) -> int | None:
    if body.thinking is None or body.thinking.type != "enabled":
        return None
    budget = body.thinking.budget_tokens
    if budget is not None and budget >= body.max_tokens:
        raise InvalidRequestError("max_tokens must be greater than thinking.budget_tokens", option="max_tokens")
    return budget


def _follows_a_tool(body: wire.CountRequest) -> bool:
    last = body.messages[-1].content
    return not isinstance(last, str) and any(isinstance(block, wire.ToolResultBlock) for block in last)


# ---- tools


def _tool(tool: wire.ToolIn, index: int) -> dict[str, Any]:
    """Calls are always valid against their schema, ``strict`` or not."""
    if tool.type not in (None, "custom"):
        raise UnsupportedError(f"tools[{index}]: {tool.type} is not available on this server", option="tools")
    if tool.defer_loading or set(tool.allowed_callers or ()) - {"direct"}:
        raise UnsupportedError(
            f"tools[{index}]: defer_loading and allowed_callers need tools that only Anthropic runs", option="tools"
        )
    if tool.input_schema is None:
        raise InvalidRequestError(f"tools[{index}].input_schema: field required", option="tools")
    function: dict[str, Any] = {"name": tool.name}
    if description := _described(tool):
        function["description"] = description
    return {"type": "function", "function": function | {"parameters": tool.input_schema}}


def _described(tool: wire.ToolIn) -> str:
    examples = [json.dumps(example, ensure_ascii=False) for example in tool.input_examples or ()]
    return "\n".join([*filter(None, [tool.description]), *(f"Example input: {each}" for each in examples)])


def _tool_choice(choice: wire.ToolChoice | None) -> neutral.ToolChoice:
    match choice:
        case None | wire.ToolChoice(type="auto"):
            return neutral.ToolChoice()
        case wire.ToolChoice(type="any"):
            return neutral.ToolChoice(mode="required")
        case wire.ToolChoice(type="none"):
            return neutral.ToolChoice(mode="none")
    if not choice.name:
        raise InvalidRequestError("tool_choice.tool.name: field required", option="tool_choice")
    return neutral.ToolChoice(mode="named", name=choice.name)
