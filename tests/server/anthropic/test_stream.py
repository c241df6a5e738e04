"""Answers: the stream that a client puts together is the message, and comes back as what the model said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.server.anthropic import translate, wire
from barrel_inference.server.anthropic.routes import with_silences
from barrel_inference.server.anthropic.stream import Writer, usage
from barrel_inference.server.failures import ShuttingDownError
from barrel_inference.server.neutral import (
    AnswerEnd,
    CallArguments,
    CallEnded,
    CallStarted,
    Content,
    Event,
    Finished,
    Reasoning,
)
from barrel_inference.types import Completion, FinishReason, Usage

COUNTED = Usage(prompt_tokens=10, cached_tokens=7, completion_tokens=5)


def completion(reason: FinishReason = "stop", *, saved: bool = True) -> Completion:
    return Completion(text="", tokens=(), finish_reason=reason, usage=COUNTED, finish_key="k" if saved else None)


def finished(reason: AnswerEnd = "stop", *, ended: FinishReason = "stop", stop_text: str | None = None) -> Finished:
    return Finished(reason=reason, stop_text=stop_text, completion=completion(ended))


def streamed(writer: Writer, events: list[Event]) -> list[dict[str, Any]]:
    """As JSON, in the form in which it goes out."""
    return [json.loads(msgspec.json.encode(piece)) for event in events for piece in writer.take(event)]


def whole(writer: Writer) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(msgspec.json.encode(writer.message))
    return message


def put_together(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of a stream."""
    message: dict[str, Any] = {}
    for piece in pieces:
        match piece["type"]:
            case "message_start":
                message = piece["message"]
            case "content_block_start":
                assert piece["index"] == len(message["content"])
                message["content"].append(piece["content_block"] | {"json": ""})
            case "content_block_delta":
                assert piece["index"] == len(message["content"]) - 1
                _add(message["content"][-1], piece["delta"])
            case "content_block_stop":
                written = message["content"][-1].pop("json")
                if message["content"][-1]["type"] == "tool_use":
                    message["content"][-1]["input"] = json.loads(written or "{}")
            case "message_delta":
                message |= piece["delta"] | {"usage": piece["usage"]}
    return message


def _add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    match delta["type"]:
        case "text_delta":
            block["text"] += delta["text"]
        case "thinking_delta":
            block["thinking"] += delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]
        case "input_json_delta":
            block["json"] += delta["partial_json"]


WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
ARGUMENTS = st.dictionaries(WORDS, WORDS | st.integers(-(2**53), 2**53) | st.booleans(), max_size=3)


def _call(number: int, arguments: dict[str, Any]) -> list[Event]:
    written = json.dumps(arguments, ensure_ascii=False)
    pieces = [written[:3], written[3:]]
    return [
        CallStarted(call=number, name="f", id=f"call_{number}"),
        *(CallArguments(call=number, text=piece) for piece in pieces if piece),
        CallEnded(call=number),
    ]


@st.composite
def answers(draw: st.DrawFn) -> list[Event]:
    events: list[Event] = [Reasoning(text=text) for text in draw(st.lists(WORDS, max_size=3))]
    n_calls = 0
    for part in draw(st.lists(WORDS | ARGUMENTS, max_size=6)):
        if isinstance(part, str):
            events.append(Content(text=part))
        else:
            events += _call(n_calls, part)
            n_calls += 1
    return [*events, finished("tool_calls" if n_calls else "stop")]


@given(answers(), st.booleans())
def test_the_stream_is_the_message(events: list[Event], hides: bool) -> None:
    writer = Writer("m", hides_thinking=hides)
    pieces = streamed(writer, events)
    assert put_together(pieces) == whole(writer)
    assert [pieces[0]["type"], pieces[-2]["type"], pieces[-1]["type"]] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]


@given(answers(), st.booleans())
def test_an_answer_comes_back_as_what_the_model_said(events: list[Event], hides: bool) -> None:
    writer = Writer("m", hides_thinking=hides)
    streamed(writer, events)
    content = whole(writer)["content"]
    said = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": content},
        {"role": "user", "content": "?"},
    ]
    body = msgspec.convert({"model": "m", "max_tokens": 9, "messages": said}, wire.MessagesRequest)
    message = translate.messages(body).messages[1]
    assert message.content == "".join(event.text for event in events if isinstance(event, Content))
    assert (message.reasoning_content or "") == "".join(event.text for event in events if isinstance(event, Reasoning))
    assert [call["id"] for call in message.tool_calls] == [e.id for e in events if isinstance(e, CallStarted)]
    written = "".join(event.text for event in events if isinstance(event, CallArguments))
    assert "".join(call["function"]["arguments"] for call in message.tool_calls) == written


def test_hidden_thinking_shows_no_word() -> None:
    writer = Writer("m", hides_thinking=True)
    pieces = streamed(writer, [Reasoning(text="secret"), Content(text="open"), finished()])
    assert "secret" not in json.dumps(pieces)
    assert [block["type"] for block in whole(writer)["content"]] == ["thinking", "text"]


def test_a_text_has_no_field_that_anthropic_leaves_out() -> None:
    """Vercel's AI SDK refuses an answer with ``"citations": null``."""
    writer = Writer("m")
    pieces = streamed(writer, [Content(text="Hi"), finished()])
    assert whole(writer)["content"] == [{"type": "text", "text": "Hi"}]
    (block,) = [piece["content_block"] for piece in pieces if piece["type"] == "content_block_start"]
    assert block == {"type": "text", "text": ""}


def test_nothing_said_is_no_content() -> None:
    writer = Writer("m")
    assert [piece["type"] for piece in streamed(writer, [finished()])] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    assert writer.message.content == []


@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        (finished(), "end_turn", None),
        (finished(stop_text="END"), "stop_sequence", "END"),
        (finished(stop_text="</s>"), "end_turn", None),
        (finished("tool_calls"), "tool_use", None),
        (finished("length", ended="length"), "max_tokens", None),
        (finished("length", ended="context_full"), "model_context_window_exceeded", None),
    ],
)
def test_stop_reasons(end: Finished, reason: str, sequence: str | None) -> None:
    writer = Writer("m", stops=["END"])
    *_, delta, _ = streamed(writer, [Content(text="x"), end])
    assert delta["delta"] == {"stop_reason": reason, "stop_sequence": sequence}
    assert (writer.message.stop_reason, writer.message.stop_sequence) == (reason, sequence)


def test_the_start_tells_what_the_prompt_took() -> None:
    first = Content(text="x", usage=Usage(prompt_tokens=10, cached_tokens=7))
    start = streamed(Writer("m"), [first])[0]["message"]
    assert start["usage"]["input_tokens"] == 3
    assert start["usage"]["cache_read_input_tokens"] == 7
    assert (start["content"], start["stop_reason"]) == ([], None)


@pytest.mark.parametrize(
    ("marked", "saved", "fresh", "created"), [(False, True, 3, 0), (True, True, 0, 3), (True, False, 3, 0)]
)
def test_usage_adds_up_to_the_prompt(marked: bool, saved: bool, fresh: int, created: int) -> None:
    found = usage(completion(saved=saved), marked=marked)
    assert (found.input_tokens, found.cache_creation_input_tokens) == (fresh, created)
    assert (found.cache_read_input_tokens, found.output_tokens) == (7, 5)


def test_no_edits_of_the_context_are_reported_where_some_were_asked_for() -> None:
    writer = Writer("m", reports_edits=True)
    *_, delta, _ = streamed(writer, [finished()])
    assert delta["context_management"] == whole(writer)["context_management"] == {"applied_edits": []}
    assert "context_management" not in json.dumps(streamed(Writer("m"), [finished()]))


# ---- silences


async def _when_told(go: asyncio.Event, closed: list[str]) -> AsyncGenerator[Event, None]:
    try:
        yield Content(text="a")
        await go.wait()
        yield Content(text="b")
    finally:
        closed.append("closed")


async def test_silences_are_told_and_nothing_is_lost() -> None:
    go, seen = asyncio.Event(), []
    async for event in with_silences(_when_told(go, []), 0.005):
        seen.append(event.text if isinstance(event, Content) else None)
        if seen.count(None) == 2:
            go.set()
    assert [text for text in seen if text] == ["a", "b"]
    assert seen[1:3] == [None, None]


async def test_leaving_in_a_silence_stops_the_work() -> None:
    closed: list[str] = []
    events = with_silences(_when_told(asyncio.Event(), closed), 0.005)
    async for event in events:
        if event is None:
            break
    await events.aclose()
    assert closed == ["closed"]


async def test_an_error_passes_through() -> None:
    async def failing() -> AsyncGenerator[Event, None]:
        yield Content(text="a")
        raise ShuttingDownError("no more")

    with pytest.raises(ShuttingDownError):
        async for _ in with_silences(failing(), 5.0):
            pass
