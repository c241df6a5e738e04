"""Messages and their content blocks to neutral messages, in the order in which they stand. Pure: what cannot be read
raises, naming the block."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from barrel_inference.errors import UnsupportedError
from barrel_inference.server.anthropic import signature, wire
from barrel_inference.types import Message


def system(given: str | Sequence[wire.TextBlock] | None) -> Iterator[Message]:
    text = given if isinstance(given, str) else "\n\n".join(block.text for block in given or () if block.text)
    if text:
        yield Message(role="system", content=text)


def conversation(messages: Sequence[wire.MessageIn]) -> Iterator[Message]:
    names: dict[str, str] = {}  # of the tools that were called, by the call's id
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        given = [wire.TextBlock(text=message.content)] if isinstance(message.content, str) else message.content
        if message.role == "assistant":
            names.update({block.id: block.name for block in given if isinstance(block, wire.ToolUseBlock)})
            yield _assistant(given, where)
        else:
            yield from _said(message.role, given, names, where)


def blocks(content: Any) -> Iterator[Any]:
    """Every block, and those within."""
    for block in () if isinstance(content, str | None) else content:
        yield block
        yield from blocks(getattr(block, "content", None))


def _assistant(given: Sequence[wire.BlockIn], where: str) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(given):
        match block:
            case wire.TextBlock(text=text):
                texts.append(text)
            case wire.ThinkingBlock():
                thoughts.append(signature.thought(block.thinking, block.signature))
            case wire.RedactedThinkingBlock():
                pass  # encrypted by another: nothing of it can be read
            case wire.ToolUseBlock():
                calls.append(_call(block))
            case _:
                raise _unreadable(block, f"{where}.content[{index}]")
    return Message(
        role="assistant",
        content="".join(texts),
        reasoning_content="\n".join(thoughts) or None,
        tool_calls=tuple(calls),
    )


def _call(block: wire.ToolUseBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
    return {"id": block.id, "type": "function", "function": function}


def _said(role: str, given: Sequence[wire.BlockIn], names: dict[str, str], where: str) -> Iterator[Message]:
    """Each tool result is a message of its own, the texts between them are one."""
    texts: list[str] = []
    for index, block in enumerate(given):
        if not isinstance(block, wire.ToolResultBlock):
            texts.append(_text(block, f"{where}.content[{index}]"))
            continue
        if texts:
            yield Message(role=role, content="\n".join(texts))
            texts = []
        yield _result(block, names.get(block.tool_use_id), f"{where}.content[{index}]")
    if texts or not given:
        yield Message(role=role, content="\n".join(texts))


def _result(block: wire.ToolResultBlock, name: str | None, where: str) -> Message:
    given = block.content
    parts = enumerate(() if isinstance(given, str) else given)
    text = given if isinstance(given, str) else "\n".join(_text(part, f"{where}.content[{i}]") for i, part in parts)
    return Message(
        role="tool", content=f"Error: {text}" if block.is_error else text, tool_call_id=block.tool_use_id, name=name
    )


def _text(block: wire.BlockIn, where: str) -> str:
    match block:
        case wire.TextBlock(text=text):
            return text
        case wire.SearchResultBlock(content=found, title=title, source=source):
            return "\n".join([f"{title} ({source})", *(part.text for part in found)])
        case wire.DocumentBlock() if (written := _document(block.source)) is not None:
            return "\n".join([*filter(None, [block.title, block.context]), written])
    raise _unreadable(block, where)


def _document(source: dict[str, Any]) -> str | None:
    """None when it is not text."""
    match source:
        case {"type": "text", "data": str(text)} | {"type": "content", "content": str(text)}:
            return text
        case {"type": "content", "content": list(parts)} if all(_is_text(part) for part in parts):
            return "\n".join(part["text"] for part in parts)
    return None


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _unreadable(block: wire.BlockIn, where: str) -> UnsupportedError:
    kind = block.__struct_config__.tag
    return UnsupportedError(f"{where}: this model reads text only; a block of type {kind} cannot be read here")
