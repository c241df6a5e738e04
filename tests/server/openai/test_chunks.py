"""Events to chat completions: whole and in chunks, with the same content."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from barrel_inference.server.neutral import (
    CallArguments,
    CallEnded,
    CallStarted,
    Content,
    Event,
    Finished,
    Reasoning,
)
from barrel_inference.server.openai.chunks import Writer
from barrel_inference.types import Completion, TokenLogprob, Usage


def finished(index: int = 0, reason: Any = "stop", tokens: int = 4, thought: int = 0) -> Finished:
    usage = Usage(prompt_tokens=10, completion_tokens=tokens, cached_tokens=8)
    completion = Completion(text="", tokens=(), finish_reason="stop", usage=usage)
    return Finished(index=index, reason=reason, reasoning_tokens=thought, completion=completion)


LOGPROB = TokenLogprob(
    token=1, text="Hello", logprob=-0.5, bytes=(72,), top=(TokenLogprob(token=2, text="x", logprob=-1.0),)
)
ANSWER: list[Event] = [
    Reasoning(text="wh"),
    Reasoning(text="y"),
    Content(text="Hel", logprobs=(LOGPROB,)),
    Content(text="lo"),
    CallStarted(call=0, name="f", id="call_1"),
    CallArguments(call=0, text='{"a": 1}'),
    CallEnded(call=0),
    finished(reason="tool_calls", thought=2),
]


def plain(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


def writer(**options: Any) -> Writer:
    return Writer("m", clock=lambda: 1234.5, **options)


def test_a_whole_answer() -> None:
    whole = plain(writer(logprobs=True).whole(ANSWER))
    (choice,) = whole["choices"]
    assert (whole["object"], whole["model"], whole["created"]) == ("chat.completion", "m", 1234)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Hello"
    assert choice["message"]["reasoning_content"] == "why"
    assert choice["message"]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    ]
    assert choice["logprobs"]["content"][0]["top_logprobs"] == [{"token": "x", "logprob": -1.0, "bytes": []}]
    assert whole["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }


def test_chunks_say_the_same() -> None:
    one = writer(logprobs=True, usage=True)
    chunks = [plain(chunk) for event in ANSWER for chunk in one.chunks(event)]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content") or "" for delta in deltas) == "Hello"
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "why"
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert calls[0] == {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert "".join(call["function"]["arguments"] for call in calls) == '{"a": 1}'
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "tool_calls"
    assert all(chunk["usage"] is None for chunk in chunks)
    last = plain(one.last_chunk())
    assert last["choices"] == [] and last["usage"]["total_tokens"] == 14
    assert len({chunk["id"] for chunk in [*chunks, last]}) == 1


def test_without_usage_asked_for_there_is_none() -> None:
    one = writer()
    assert "usage" not in plain(one.chunks(ANSWER[0])[0])
    assert one.last_chunk() is None


def test_several_answers_count_their_prompt_once() -> None:
    events: list[Event] = [Content(index=1, text="b"), Content(text="a"), finished(1), finished(0)]
    whole = plain(writer().whole(events))
    assert [(choice["index"], choice["message"]["content"]) for choice in whole["choices"]] == [(0, "a"), (1, "b")]
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (10, 8)


def test_the_older_form_of_calls() -> None:
    whole = plain(writer(functions=True).whole(ANSWER))["choices"][0]
    assert whole["finish_reason"] == "function_call"
    assert whole["message"]["function_call"] == {"name": "f", "arguments": '{"a": 1}'}
    assert "tool_calls" not in whole["message"]


def test_an_answer_of_calls_only_has_no_content() -> None:
    assert plain(writer().whole(ANSWER[4:]))["choices"][0]["message"]["content"] is None
    assert plain(writer().whole([finished()]))["choices"][0]["message"]["content"] == ""


def test_an_answer_that_was_cut() -> None:
    assert (
        plain(writer().whole([Content(text="a"), finished(reason="length")]))["choices"][0]["finish_reason"] == "length"
    )
