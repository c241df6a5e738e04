"""Items of the Responses API to messages and back; what cannot be honoured is named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.errors import BarrelError, InvalidRequestError, UnsupportedError
from barrel_inference.server.neutral import ChatRequest, ToolChoice
from barrel_inference.server.openai.responses import tools, translate, wire
from barrel_inference.types import Message

CH = "tool_choice"


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
        ({"tools": [{"type": "function", "parameters": {}}]}, InvalidRequestError, "tools"),
        ({"tools": [{"type": "function", "name": "get weather"}]}, InvalidRequestError, "tools"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, InvalidRequestError, "tools"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "namespace"}]}]}, UnsupportedError, "tools"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}}, UnsupportedError, CH),
        ({"context_management": [{"type": "compaction"}]}, UnsupportedError, "context_management"),
        ({"moderation": {"model": "m"}}, UnsupportedError, "moderation"),
        ({"reasoning": {"mode": "pro"}}, UnsupportedError, "reasoning"),
        ({"reasoning": {"context": "current_turn"}}, UnsupportedError, "reasoning"),
        ({"temperature": 3}, InvalidRequestError, "temperature"),
        ({"top_p": -1}, InvalidRequestError, "top_p"),
        ({"max_output_tokens": -1}, InvalidRequestError, "max_output_tokens"),
        ({"top_logprobs": 21}, InvalidRequestError, "top_logprobs"),
        ({"stream_options": {"include_obfuscation": False}}, InvalidRequestError, "stream_options"),
        ({"input": [{"type": "custom_tool_call", "input": "x"}]}, InvalidRequestError, "input"),
        ({"tool_choice": {"type": "file_search"}}, UnsupportedError, "tool_choice"),
        ({"input": []}, InvalidRequestError, "input"),
        ({"input": [{"type": "computer_call"}]}, UnsupportedError, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, UnsupportedError, "input"),
        ({"input": [{"type": "function_call", "arguments": "{}"}]}, InvalidRequestError, "input"),
        ({"input": [{"type": {"a": "message"}, "role": "user"}]}, UnsupportedError, "input"),
        ({"input": [{"role": "user", "content": 1.5}]}, InvalidRequestError, "input"),
        ({"input": [{"type": "reasoning", "summary": True}]}, InvalidRequestError, "input"),
        ({"input": [{"type": "function_call_output", "output": 7}]}, InvalidRequestError, "input"),
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


FUNCTION: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}}
PATCH: dict[str, Any] = {"type": "custom", "name": "patch", "description": "Edits."}
SPACE: dict[str, Any] = {"type": "namespace", "name": "mcp__files__", "description": "d", "tools": [FUNCTION]}


def names(asked: ChatRequest) -> list[str]:
    return [tool["function"]["name"] for tool in asked.tools]


def test_tools_of_every_kind_are_functions_to_the_model() -> None:
    asked = request(tools=[FUNCTION, PATCH, SPACE])
    assert names(asked) == ["f", "patch", "mcp__files__f"]
    patch = asked.tools[1]["function"]
    assert patch["description"] == "Edits."
    assert patch["parameters"]["required"] == ["input"] and patch["parameters"]["additionalProperties"] is False


def test_tools_may_stand_in_the_input() -> None:
    """Where newer agents put them."""
    asked = request(input=[{"type": "additional_tools", "tools": [FUNCTION, PATCH]}, {"role": "user", "content": "hi"}])
    assert names(asked) == ["f", "patch"]
    assert asked.messages == (Message(role="user", content="hi"),)


def test_the_form_of_a_custom_tools_input() -> None:
    def tool(syntax: str) -> dict[str, Any]:
        return {**PATCH, "format": {"type": "grammar", "syntax": syntax, "definition": "a+"}}

    (regex,) = tools.read([tool("regex")]).functions
    assert regex["function"]["parameters"]["properties"]["input"]["pattern"] == "^(?:a+)$"
    lark = tools.read([tool("lark")])
    assert lark.functions[0]["function"]["description"] == "Edits.\n\nThe input follows this grammar:\na+"
    assert lark.unheeded == ("tools.patch.format",)


def test_tools_that_only_openai_runs_are_left_out_beside_others() -> None:
    found = tools.read([{"type": "web_search"}, FUNCTION, {"type": "image_generation"}])
    assert [each["function"]["name"] for each in found.functions] == ["f"]
    assert found.unheeded == ("tools.web_search", "tools.image_generation")


def test_choices_of_tools() -> None:
    given = [FUNCTION, PATCH, SPACE]
    named = request(tools=given, tool_choice={"type": "custom", "name": "patch"})
    assert named.tool_choice == ToolChoice(mode="named", name="patch") and len(named.tools) == 3
    allowed = [{"type": "custom", "name": "patch"}, {"type": "function", "name": "f", "namespace": "mcp__files__"}]
    asked = request(tools=given, tool_choice={"type": "allowed_tools", "mode": "required", "tools": allowed})
    assert (names(asked), asked.tool_choice) == (["patch", "mcp__files__f"], ToolChoice(mode="required"))


def test_calls_of_every_kind_come_back() -> None:
    items = [
        {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "a\nb"},
        {"type": "function_call", "call_id": "c2", "name": "f", "namespace": "mcp__files__", "arguments": "{}"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
        {"type": "function_call_output", "call_id": "c2", "output": "done too"},
    ]
    turn, *results = translate.messages(items)
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in turn.tool_calls] == [
        ("patch", '{"input": "a\\nb"}'),
        ("mcp__files__f", "{}"),
    ]
    assert [(each.role, each.content, each.tool_call_id) for each in results] == [
        ("tool", "done", "c1"),
        ("tool", "done too", "c2"),
    ]


def test_a_thought_that_another_has_encrypted_is_left_out() -> None:
    items = [
        {"role": "user", "content": "U"},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABo"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "T"}]},
    ]
    assert translate.messages(items) == [Message(role="user", content="U"), Message(role="assistant", content="T")]


def test_what_asks_for_nothing_else_is_accepted() -> None:
    asked = request(
        reasoning={"mode": "standard", "context": "all_turns"},
        include=["reasoning.encrypted_content", "file_search_call.results"],
        max_tool_calls=3,
        prompt_cache_key="k",
        prompt_cache_options={"mode": "implicit"},
        client_metadata={"a": "b"},
        service_tier="auto",
    )
    assert asked == request()
    with pytest.raises(msgspec.ValidationError, match="include"):
        request(include=["nonsense"])


PARTS = ["role", "content", "summary", "output", "call_id", "name", "namespace", "arguments", "input", "tools", "id"]
KEYS = st.sampled_from([*PARTS, "type", "text", "format", "schema", "parameters", "strict"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
CALL_TYPES = ["function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"]
ITEM_TYPES = ["message", "reasoning", "additional_tools", *CALL_TYPES, "item_reference", "other"]
ITEMS = st.fixed_dictionaries({"type": st.sampled_from(ITEM_TYPES) | JSON}, optional=dict.fromkeys(PARTS, JSON))


@given(
    st.lists(ITEMS, max_size=5), st.dictionaries(st.sampled_from(["tools", "tool_choice", "text"]), JSON, max_size=2)
)
def test_whatever_comes_is_translated_or_refused(items: list[Any], more: dict[str, Any]) -> None:
    try:
        request(input=items, **more)
    except (BarrelError, msgspec.ValidationError) as error:
        assert str(error)
