"""OpenAI's requests in neutral form: every parameter honoured or refused by name."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.errors import BarrelError, InvalidRequestError, SchemaError, UnsupportedError
from barrel_inference.server.neutral import ChatRequest, ToolChoice
from barrel_inference.server.openai import translate, wire
from barrel_inference.types import Message

ASK = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def chat(**body: Any) -> ChatRequest:
    return translate.chat(msgspec.convert({"model": "m", "messages": ASK, **body}, wire.ChatCompletionRequest))


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({}, {}),
        ({"temperature": 0, "top_p": 0.5, "seed": 7, "n": 2}, {"temperature": 0, "top_p": 0.5, "seed": 7, "n": 2}),
        ({"frequency_penalty": 1, "presence_penalty": -1}, {"frequency_penalty": 1, "presence_penalty": -1}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 5, "max_completion_tokens": 6}, {"max_tokens": 6}),
        ({"stop": "x"}, {"stop": ("x",)}),
        ({"stop": ["x", "", "y"]}, {"stop": ("x", "y")}),
        ({"logit_bias": {"12": -100}}, {"logit_bias": {12: -100}}),
        ({"logprobs": True}, {"logprobs": True, "top_logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.1}, {"top_k": 1, "min_p": 0.1, "repeat_penalty": 1.1}),
        ({"user": "u", "metadata": {"a": "b"}, "service_tier": "auto", "store": True, "prompt_cache_key": "k"}, {}),
        ({"prompt_cache_options": {"mode": "implicit"}, "stream": True, "stream_options": {"include_usage": True}}, {}),
        ({"temperature": None, "stop": None, "tools": None, "n": None}, {}),
    ],
)
def test_options_are_what_the_client_said_and_nothing_else(body: dict[str, Any], options: dict[str, Any]) -> None:
    assert chat(**body).options == options


@pytest.mark.parametrize(
    ("body", "error", "option"),
    [
        ({"messages": []}, InvalidRequestError, "messages"),
        ({"temperature": 3}, InvalidRequestError, "temperature"),
        ({"top_p": -1}, InvalidRequestError, "top_p"),
        ({"frequency_penalty": 3}, InvalidRequestError, "frequency_penalty"),
        ({"logit_bias": {"a": 1}}, InvalidRequestError, "logit_bias"),
        ({"top_logprobs": 2}, InvalidRequestError, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, InvalidRequestError, "top_logprobs"),
        ({"audio": {"voice": "x"}}, UnsupportedError, "audio"),
        ({"modalities": ["text", "audio"]}, UnsupportedError, "modalities"),
        ({"web_search_options": {}}, UnsupportedError, "web_search_options"),
        ({"moderation": {"model": "m"}}, UnsupportedError, "moderation"),
        ({"max_tokens": -1}, InvalidRequestError, "max_tokens"),
        ({"max_completion_tokens": -1}, InvalidRequestError, "max_completion_tokens"),
        ({"add_generation_prompt": False}, UnsupportedError, "add_generation_prompt"),
        ({"stream_options": {"include_usage": True}}, InvalidRequestError, "stream_options"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, UnsupportedError, "tools"),
        ({"tools": [{"type": "function"}]}, InvalidRequestError, "tools"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "f"}}}, UnsupportedError, "tool_choice"),
        ({"verbosity": "low"}, UnsupportedError, "verbosity"),
        ({"response_format": {"type": "json_schema"}}, InvalidRequestError, "response_format"),
        ({"guided_regex": "a", "grammar": "b"}, InvalidRequestError, "response_format"),
        ({"guided_json": "no"}, InvalidRequestError, "guided_json"),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            InvalidRequestError,
            "continue_final_message",
        ),
    ],
)
def test_what_is_refused_is_named(body: dict[str, Any], error: type[BarrelError], option: str) -> None:
    with pytest.raises(error) as caught:
        chat(**body)
    assert caught.value.details["option"] == option


@pytest.mark.parametrize("name", ["get weather", "", "f" * 129, "größe", "a.b"])
def test_names_of_tools_are_openais(name: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"tools.*name"):
        chat(tools=[{"type": "function", "function": {"name": name}}])


@pytest.mark.parametrize("part", ["image_url", "input_audio", "file"])
def test_only_text_can_be_read(part: str) -> None:
    with pytest.raises(UnsupportedError, match=part):
        chat(messages=[{"role": "user", "content": [{"type": part, part: {}}]}])


def test_messages_of_every_role() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":  1}'}}
    asked = chat(
        messages=[
            {"role": "developer", "content": "D"},
            {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "U", "name": "Ada"},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "R"},
            {"role": "tool", "content": "T", "tool_call_id": "c"},
            {"role": "assistant", "function_call": {"name": "g", "arguments": ""}},
            {"role": "function", "name": "g", "content": "G"},
            {"role": "assistant", "refusal": "no"},
        ]
    )
    plain = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    older = {"id": "call_g", "type": "function", "function": {"name": "g", "arguments": "{}"}}
    assert asked.messages == (
        Message(role="developer", content="D"),
        Message(role="system", content="a\nb"),
        Message(role="user", content="U", name="Ada"),
        Message(role="assistant", content="", reasoning_content="R", tool_calls=(plain,)),
        Message(role="tool", content="T", tool_call_id="c"),
        Message(role="assistant", content="", tool_calls=(older,)),
        Message(role="tool", content="G", tool_call_id="call_g", name="g"),
        Message(role="assistant", content="no"),
    )


@pytest.mark.parametrize("arguments", ["not json", "[1]", '"x"', '{"city": "Par'])
def test_a_call_that_was_cut_off_does_not_end_the_conversation(arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    (message,) = chat(messages=[{"role": "assistant", "tool_calls": [call]}]).messages
    assert json.loads(message.tool_calls[0]["function"]["arguments"]) == {"INVALID_JSON": arguments}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, ToolChoice()),
        ({"tool_choice": "none"}, ToolChoice(mode="none")),
        ({"tool_choice": "required"}, ToolChoice(mode="required")),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, ToolChoice(mode="named", name="f")),
        ({"function_call": {"name": "f"}}, ToolChoice(mode="named", name="f")),
        ({"function_call": "none"}, ToolChoice(mode="none")),
    ],
)
def test_tool_choice(body: dict[str, Any], expected: ToolChoice) -> None:
    assert chat(tools=[TOOL], **body).tool_choice == expected


def test_some_of_the_tools_may_be_called() -> None:
    other = {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}}
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "g"}}]}
    asked = chat(tools=[TOOL, other], tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert (asked.tools, asked.tool_choice) == ((other,), ToolChoice(mode="required"))


def test_tools() -> None:
    asked = chat(tools=[TOOL], parallel_tool_calls=False)
    assert asked.tools == (TOOL,)
    assert asked.parallel_tool_calls is False
    assert chat(functions=[TOOL["function"]]).tools == (TOOL,)
    bare = chat(tools=[{"type": "function", "function": {"name": "f", "strict": True}}]).tools[0]["function"]
    assert bare == {"name": "f", "strict": True, "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type": "object"}'),
        ({"response_format": {"type": "json_object", "schema": {"type": "array"}}}, "json_schema", '{"type": "array"}'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}},
            "json_schema",
            '{"type": "null"}',
        ),
        ({"guided_json": '{"type": "null"}'}, "json_schema", '{"type": "null"}'),
        ({"json_schema": {"type": "null"}}, "json_schema", '{"type": "null"}'),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["a", "b"]}, "choices", ("a", "b")),
        ({"grammar": "start: x"}, "grammar", "start: x"),
    ],
)
def test_forms_of_the_answer(body: dict[str, Any], field: str, value: Any) -> None:
    constraint = chat(**body).constraint
    assert constraint is not None
    assert {name: found for name, found in msgspec.structs.asdict(constraint).items() if found} == {field: value}


def test_a_schema_that_cannot_be_enforced() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"uniqueItems": True}}}
    with pytest.raises(SchemaError, match="uniqueItems"):
        chat(response_format=form)


@pytest.mark.parametrize(
    ("effort", "think"), [("none", False), ("minimal", "minimal"), ("high", "high"), ("xhigh", "max"), (None, None)]
)
def test_reasoning_effort(effort: str | None, think: Any) -> None:
    assert chat(reasoning_effort=effort).think == think


@pytest.mark.parametrize(
    ("reasoning", "think", "budget"),
    [
        ({"effort": "low"}, "low", None),
        ({"enabled": False}, False, None),
        ({"enabled": True, "max_tokens": 9}, True, 9),
        ({"effort": "low", "max_tokens": 0}, "low", 0),
        ({"summary": "auto"}, None, None),
    ],
)
def test_reasoning_in_its_other_form(reasoning: dict[str, Any], think: Any, budget: int | None) -> None:
    asked = chat(reasoning=reasoning)
    assert (asked.think, asked.think_budget) == (think, budget)
    with pytest.raises(msgspec.ValidationError):
        chat(reasoning=reasoning | {"nonsense": 1})


def test_extensions() -> None:
    asked = chat(
        chat_template_kwargs={"a": 1}, documents=[{"text": "d"}], continue_final_message=True, thinking_budget=9
    )
    assert (asked.template, asked.documents, asked.continue_final, asked.think_budget) == (
        {"a": 1},
        ({"text": "d"},),
        True,
        9,
    )


def test_keep_alive_counts_only_when_configured() -> None:
    body = msgspec.convert({"model": "m", "messages": ASK, "keep_alive": "1h"}, wire.ChatCompletionRequest)
    assert translate.chat(body).keep_alive is None
    assert translate.chat(body, keep_alive=True).keep_alive == "1h"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_prompts_of_every_kind(prompt: Any, expected: Any) -> None:
    assert translate.prompts(prompt) == expected
    for wrong in ([1, "a"], []):
        with pytest.raises(InvalidRequestError):
            translate.prompts(wrong)


def test_completions() -> None:
    body = msgspec.convert(
        {"model": "m", "prompt": "p", "logprobs": 2, "best_of": 1, "suffix": "s", "guided_choice": ["x"]},
        wire.CompletionRequest,
    )
    asked = translate.completion(body, "p")
    assert asked.suffix == "s"
    assert asked.options == {"max_tokens": 16, "logprobs": True, "top_logprobs": 2, "choices": ("x",)}
    with pytest.raises(UnsupportedError, match="echo"):
        translate.completion(msgspec.structs.replace(body, echo=True), "p")
    with pytest.raises(InvalidRequestError, match="best_of"):
        translate.completion(msgspec.structs.replace(body, best_of=3), "p")


def test_embeddings() -> None:
    body = msgspec.convert({"model": "m", "input": ["a", [1]], "dimensions": 3}, wire.EmbeddingRequest)
    asked = translate.embedding(body)
    assert (asked.inputs, asked.dimensions) == (("a", (1,)), 3)
    with pytest.raises(InvalidRequestError, match="encoding_format"):
        translate.embedding(msgspec.structs.replace(body, encoding_format="hex"))
    with pytest.raises(InvalidRequestError, match="empty"):
        translate.embedding(msgspec.structs.replace(body, input=[]))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["messages", "tools", "tool_choice", "stop", "logit_bias", "response_format", "n", "role", "content"]
)


@given(st.dictionaries(FIELDS, JSON, max_size=5))
def test_whatever_comes_is_translated_or_refused(body: dict[str, Any]) -> None:
    try:
        found = msgspec.convert({"model": "m", "messages": ASK, **body}, wire.ChatCompletionRequest)
        translate.chat(found)
    except (msgspec.ValidationError, BarrelError):
        pass
