"""Calls whose arguments come as they are written, in every dialect: pieces in the stream, whole in the answer, and not
lost when the generation is cut short."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from barrel_inference.server.anthropic.stream import Writer as AnthropicWriter
from barrel_inference.server.neutral import CallArguments, CallEnded, CallStarted, Event, Finished
from barrel_inference.server.ollama.pieces import Writer as OllamaWriter
from barrel_inference.server.ollama.pieces import joined
from barrel_inference.server.openai.chunks import Writer as OpenAIWriter
from barrel_inference.server.openai.responses import wire as responses_wire
from barrel_inference.server.openai.responses.stream import Writer as ResponsesWriter
from barrel_inference.types import Completion, FinishReason, Usage

PIECES = ['{"ci', 'ty": ', '"Par', 'is"}']
WRITTEN = '<tool_call>{"name": "f", "arguments": {"city": "Par'


def answer(pieces: list[str], *, unfinished: str = "") -> list[Event]:
    reason: FinishReason = "length" if unfinished else "stop"
    completion = Completion(text="", tokens=(), finish_reason=reason, usage=Usage(prompt_tokens=3, completion_tokens=9))
    return [
        CallStarted(call=0, name="f", id="c1"),
        *(CallArguments(call=0, text=piece) for piece in pieces),
        CallEnded(call=0, unfinished=unfinished),
        Finished(reason="length" if unfinished else "tool_calls", completion=completion),
    ]


WHOLE = answer(PIECES)
CUT = answer(PIECES[:3], unfinished=WRITTEN)


def plain(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


def openai_chunks(events: list[Event]) -> list[Any]:
    writer = OpenAIWriter("m")
    return [plain(chunk)["choices"][0] for event in events for chunk in writer.chunks(event)]


def anthropic(events: list[Event]) -> tuple[Any, list[Any]]:
    writer = AnthropicWriter("m")
    found = [plain(piece) for event in events for piece in writer.take(event)]
    return plain(writer.message), found


def responses(events: list[Event]) -> tuple[Any, list[Any]]:
    writer = ResponsesWriter(msgspec.convert({"model": "m", "input": "x"}, responses_wire.ResponseRequest))
    found = [plain(piece) for event in events for piece in writer.take(event)]
    return plain(writer.response), found


def ollama(events: list[Event]) -> tuple[Any, list[Any]]:
    writer = OllamaWriter("m")
    found = [piece for event in events if (piece := writer.event(event)) is not None]
    end = events[-1]
    assert isinstance(end, Finished)
    return plain(joined([*found, writer.final(end.completion, load_s=0)])), plain(found)


@pytest.mark.parametrize(("events", "pieces"), [(WHOLE, PIECES), (CUT, PIECES[:3])])
def test_pieces_go_out_as_they_come(events: list[Event], pieces: list[str]) -> None:
    deltas = [choice["delta"] for choice in openai_chunks(events)]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call["function"]["arguments"] for call in calls] == ["", *pieces]
    kinds = [(piece["delta"]["type"], piece["delta"]["partial_json"]) for piece in anthropic(events)[1][2:-3]]
    assert kinds == [("input_json_delta", piece) for piece in pieces]
    named = [piece for piece in responses(events)[1] if piece["type"] == "response.function_call_arguments.delta"]
    assert [piece["delta"] for piece in named] == pieces


def test_a_whole_call_is_one_everywhere() -> None:
    arguments = {"city": "Paris"}
    (call,) = plain(OpenAIWriter("m").whole(WHOLE))["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == arguments
    assert anthropic(WHOLE)[0]["content"][0]["input"] == arguments
    assert json.loads(responses(WHOLE)[0]["output"][0]["arguments"]) == arguments
    assert ollama(WHOLE)[0]["message"]["tool_calls"][0]["function"]["arguments"] == arguments


def test_a_call_that_is_cut_off_is_not_lost() -> None:
    """As far as it was written: where a call is text, as a call; where it is an object, as text."""
    choice = plain(OpenAIWriter("m").whole(CUT))["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == "".join(PIECES[:3])
    message, pieces = anthropic(CUT)
    assert message["stop_reason"] == "max_tokens"
    assert [(block["type"], block["text"]) for block in message["content"]] == [("text", WRITTEN)]
    assert [piece["type"] for piece in pieces[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    response, _ = responses(CUT)
    assert (response["status"], response["output"][0]["status"]) == ("incomplete", "incomplete")
    assert response["output"][0]["arguments"] == "".join(PIECES[:3])
    said = ollama(CUT)[0]
    assert said["message"]["content"] == WRITTEN and not said["message"].get("tool_calls")
    assert said["done_reason"] == "length"
