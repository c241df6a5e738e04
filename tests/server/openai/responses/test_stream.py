"""The events of a response: in order, numbered, and adding up to the response itself."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from barrel_inference.errors import WorkerDiedError
from barrel_inference.server.failures import NotFoundError
from barrel_inference.server.neutral import CallArguments, CallEnded, CallStarted, Content, Event, Finished, Reasoning
from barrel_inference.server.openai.responses import translate, wire
from barrel_inference.server.openai.responses.store import Store, Stored
from barrel_inference.server.openai.responses.stream import Writer
from barrel_inference.server.openai.responses.tools import read
from barrel_inference.types import Completion, Message, Usage

FUNCTION = {"type": "function", "parameters": {"type": "object"}}
USAGE = Usage(prompt_tokens=10, completion_tokens=4, cached_tokens=8)


def finished(reason: Any = "stop") -> Finished:
    completion = Completion(text="", tokens=(), finish_reason="stop", usage=USAGE, finish_key="k")
    return Finished(reason=reason, reasoning_tokens=1, completion=completion)


ANSWER: list[Event] = [
    Reasoning(text="wh"),
    Reasoning(text="y"),
    Content(text="Hel"),
    Content(text="lo"),
    CallStarted(call=0, name="f", id="call_1"),
    CallArguments(call=0, text='{"a": 1}'),
    CallEnded(call=0),
    CallStarted(call=1, name="g", id="call_2"),
    CallArguments(call=1, text="{}"),
    CallEnded(call=1),
    finished("tool_calls"),
]


def streamed(events: list[Event], **body: Any) -> tuple[Writer, list[dict[str, Any]]]:
    asked = msgspec.convert({"model": "m", "input": "x", **body}, wire.ResponseRequest)
    writer = Writer(asked, read(asked.tools or ()), clock=lambda: 7.0)
    found = [*writer.begin()]
    for event in events:
        found += writer.take(event)
    return writer, [json.loads(msgspec.json.encode(each)) for each in found]


def test_every_event_in_its_place() -> None:
    _, events = streamed(ANSWER)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        *["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"] * 2,
        "completed",
    ]


def test_deltas_add_up_to_the_response() -> None:
    writer, events = streamed(ANSWER)
    final = events[-1]["response"]
    assert final == json.loads(msgspec.json.encode(writer.response))
    assert [item["type"] for item in final["output"]] == ["reasoning", "message", "function_call", "function_call"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == final["output"]
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert final["output"][1]["content"] == [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    assert final["usage"]["input_tokens_details"] == {"cached_tokens": 8, "cache_write_tokens": 2}
    assert final["usage"]["output_tokens_details"]["reasoning_tokens"] == 1
    assert final["status"] == "completed"


def test_what_was_sent_does_not_change_later() -> None:
    _, events = streamed(ANSWER)
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert added[1]["content"] == [] and added[1]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []


def test_the_reasoning_as_a_summary_when_one_is_asked_for() -> None:
    _, events = streamed(ANSWER[:2] + ANSWER[-1:], reasoning={"summary": "auto"})
    kinds = [event["type"] for event in events]
    assert "response.reasoning_summary_text.delta" in kinds and "response.reasoning_text.delta" not in kinds
    assert events[-1]["response"]["output"][0]["summary"] == [{"type": "summary_text", "text": "why"}]


def test_the_reasoning_as_a_token_to_be_given_back_unread() -> None:
    _, events = streamed(ANSWER, include=["reasoning.encrypted_content"])
    item = events[-1]["response"]["output"][0]
    bare = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": item["encrypted_content"]}
    (message,) = translate.messages([bare])
    assert message.reasoning_content == "why"
    _, events = streamed(ANSWER)
    assert "encrypted_content" not in events[-1]["response"]["output"][0]


def test_calls_of_custom_tools_and_of_tools_in_namespaces() -> None:
    given = [{"type": "custom", "name": "f"}, {"type": "namespace", "name": "n", "tools": [{**FUNCTION, "name": "g"}]}]
    calls: list[Event] = [
        CallStarted(call=0, name="f", id="call_1"),
        CallArguments(call=0, text='{"input": "a'),
        CallArguments(call=0, text='\\nb"}'),
        CallEnded(call=0),
        CallStarted(call=1, name="n__g", id="call_2"),
        CallArguments(call=1, text="{}"),
        CallEnded(call=1),
        finished("tool_calls"),
    ]
    _, events = streamed(calls, tools=given)
    custom, function = events[-1]["response"]["output"]
    assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "f", "a\nb")
    assert (function["namespace"], function["name"], function["arguments"]) == ("n", "g", "{}")
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[2:6] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    assert events[3]["delta"] == events[4]["input"] == "a\nb"


def test_a_custom_tools_input_that_was_cut_off_is_not_lost() -> None:
    calls: list[Event] = [
        CallStarted(call=0, name="f", id="call_1"),
        CallArguments(call=0, text='{"input": "a'),
        CallEnded(call=0, unfinished="..."),
        finished("length"),
    ]
    _, events = streamed(calls, tools=[{"type": "custom", "name": "f"}])
    (item,) = events[-1]["response"]["output"]
    assert (item["input"], item["status"]) == ('{"input": "a', "incomplete")


def test_an_answer_that_was_cut() -> None:
    _, events = streamed([Content(text="a"), finished("length")])
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


def test_a_failure_in_the_middle() -> None:
    writer, events = streamed([Content(text="a")])
    error, failed = (json.loads(msgspec.json.encode(each)) for each in writer.failed(WorkerDiedError("it died")))
    assert (error["type"], error["code"], error["sequence_number"]) == ("error", "worker_died", len(events))
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "it died"}  # as the API calls it


def test_the_store_forgets_the_oldest() -> None:
    store = Store(max_responses=2)
    for name in ("a", "b", "c"):
        response = wire.Response(id=name, created_at=0, model="m", status="completed")
        store.put(Stored(response, [], (Message(role="user", content="x"),)))
    assert store.get("c").response.id == "c"
    with pytest.raises(NotFoundError, match="not found"):
        store.get("a")
    store.delete("b")
    with pytest.raises(NotFoundError, match="not found"):
        store.get("b")


def test_the_store_is_bounded_by_size() -> None:
    """Of all that is stored: also of what the request brought beside its messages."""
    fat = "x" * 2000
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": fat}}
    fields: list[dict[str, Any]] = [{"instructions": fat}, {"tools": [{"name": fat}]}, {}, {}]
    said = [Message(role="user", content="x")] * 2
    said += [Message(role="assistant", content="", tool_calls=(call,)), Message(role="user", content=fat)]
    store = Store(max_bytes=4000)
    for number, (more, message) in enumerate(zip(fields, said, strict=True)):
        response = wire.Response(id=str(number), created_at=0, model="m", status="completed", **more)
        store.put(Stored(response, [], (message,)))
        assert store.get(str(number)).response is response
        for gone in range(number):
            with pytest.raises(NotFoundError, match="not found"):
                store.get(str(gone))
