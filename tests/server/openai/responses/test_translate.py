"""Items of the Responses API to messages and back; what cannot be honoured is named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.errors import BarrelError, InvalidRequestError, UnsupportedError
from barrel_inference.server.neutral import ChatRequest, ToolChoice
from barrel_inference.server.openai.responses import translate, wire
from barrel_inference.types import Message


def request(history: tuple[Message, ...] = (), **body: Any) -> ChatRequest:
    found = msgspec.convert({"model": "m", "input": "hi", **body}, wire.ResponseRequest)
    return translate.request(found, history)


def test_a_text_is_a_user_message_behind_the_instructions() -> None:
    before = (Message(role="user", content="earlier"), Message(role="assistant", content="answer"))
    asked = request(before, instructions="Be brief.")
    assert asked.messages == (Message(role="system", content="Be brief."), *before, Message(role="user", content="hi"))


def test_items_that_follow_each_other_are_one_turn() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "U"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "R"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "T"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {"type": "message", "role": "developer", "content": "D"},
    ]
    calls = (
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    )
    assert translate.messages(items) == [
        Message(role="user", content="U"),
        Message(role="assistant", content="T", reasoning_content="R", tool_calls=calls),
        Message(role="tool", content="one", tool_call_id="c1"),
        Message(role="tool", content="two", tool_call_id="c2"),
        Message(role="developer", content="D"),
    ]


@pytest.mark.parametrize(
    ("body", "error", "option"),
    [
        ({"background": True}, UnsupportedError, "background"),
        ({"conversation": "c"}, UnsupportedError, "conversation"),
        ({"prompt": {"id": "p"}}, UnsupportedError, "prompt"),
        ({"text": {"verbosity": "low"}}, UnsupportedError, "text"),
        ({"tools": [{"type": "web_search"}]}, UnsupportedError, "tools"),
        ({"tool_choice": {"type": "file_search"}}, UnsupportedError, "tool_choice"),
        ({"input": []}, InvalidRequestError, "input"),
        ({"input": [{"type": "computer_call"}]}, UnsupportedError, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, UnsupportedError, "input"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "x"}]}, InvalidRequestError, "input"),
        ({"text": {"format": {"type": "json_schema"}}}, InvalidRequestError, "text"),
    ],
)
def test_what_is_refused_is_named(body: dict[str, Any], error: type[BarrelError], option: str) -> None:
    with pytest.raises(error) as caught:
        request(**body)
    assert caught.value.details["option"] == option


def test_options() -> None:
    asked = request(
        max_output_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_logprobs=2,
        truncation="auto",
        reasoning={"effort": "high"},
        parallel_tool_calls=False,
        tools=[{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}],
        tool_choice={"type": "function", "name": "f"},
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "null"}}},
    )
    assert asked.options == {
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "logprobs": True,
        "top_logprobs": 2,
    }
    assert (asked.truncate, asked.think, asked.parallel_tool_calls) == (True, "high", False)
    assert asked.tool_choice == ToolChoice(mode="named", name="f")
    assert asked.tools[0]["function"]["strict"] is True
    assert asked.constraint is not None and asked.constraint.json_schema == '{"type": "null"}'


PARTS = ["role", "content", "summary", "output", "call_id", "name", "arguments", "id"]
KEYS = st.sampled_from([*PARTS, "type", "text", "format", "schema", "parameters", "strict"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
ITEM_TYPES = ["message", "reasoning", "function_call", "function_call_output", "item_reference", "other"]
ITEMS = st.fixed_dictionaries({"type": st.sampled_from(ITEM_TYPES)}, optional=dict.fromkeys(PARTS, JSON))


@given(
    st.lists(ITEMS, max_size=5), st.dictionaries(st.sampled_from(["tools", "tool_choice", "text"]), JSON, max_size=2)
)
def test_whatever_comes_is_translated_or_refused(items: list[Any], more: dict[str, Any]) -> None:
    try:
        request(input=items, **more)
    except (BarrelError, msgspec.ValidationError) as error:
        assert str(error)
