"""Requests of Anthropic's clients to neutral ones."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.errors import BarrelError, InvalidRequestError, UnsupportedError
from barrel_inference.server.anthropic import signature, translate, wire
from barrel_inference.server.neutral import ChatRequest, ToolChoice
from barrel_inference.types import Message

USER = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "weather", "description": "Tells the weather", "input_schema": SCHEMA}
EPHEMERAL = {"type": "ephemeral", "ttl": "1h"}
CALLED = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {}}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "cold"}]}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def decoded(**fields: Any) -> wire.MessagesRequest:
    body = {"model": "m", "max_tokens": 100, "messages": [USER], **fields}
    return msgspec.json.decode(json.dumps(body), type=wire.MessagesRequest)


def asked(**fields: Any) -> ChatRequest:
    return translate.messages(decoded(**fields))


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


# ---- messages


def test_the_least_request() -> None:
    found = asked()
    assert found.messages == (Message(role="user", content="Hi"),)
    assert found.options == {"max_tokens": 100}
    assert (found.think, found.continue_final, found.truncate) == (False, False, False)


def test_system_as_text_and_as_blocks() -> None:
    assert asked(system="Be brief.").messages[0] == Message(role="system", content="Be brief.")
    blocks = [text("Be"), text("brief.", cache_control=EPHEMERAL)]
    assert asked(system=blocks).messages[0] == Message(role="system", content="Be\n\nbrief.")


def test_a_system_message_stays_where_it_is() -> None:
    found = asked(messages=[USER, {"role": "system", "content": "Now in French."}, USER])
    assert [each.role for each in found.messages] == ["user", "system", "user"]


def test_a_turn_with_tools() -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Zürich"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("cold"), text("wet")]}
    found = asked(
        messages=[
            USER,
            {"role": "assistant", "content": [text("Let me see."), use]},
            {"role": "user", "content": [result, text("So?")]},
        ]
    )
    called, answered, said = found.messages[1:]
    function = {"name": "weather", "arguments": '{"city": "Zürich"}'}
    assert called.content == "Let me see."
    assert called.tool_calls == ({"id": "toolu_1", "type": "function", "function": function},)
    assert answered == Message(role="tool", content="cold\nwet", tool_call_id="toolu_1", name="weather")
    assert said == Message(role="user", content="So?")


@pytest.mark.parametrize("content", ["went wrong", [text("went wrong")]])
def test_a_failed_tool_says_so(content: Any) -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": content, "is_error": True}
    (found,) = asked(messages=[{"role": "user", "content": [result]}]).messages
    assert (found.role, found.content) == ("tool", "Error: went wrong")


def test_a_tool_result_may_be_empty() -> None:
    (found,) = asked(messages=[{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]).messages
    assert (found.role, found.content) == ("tool", "")


def test_thinking_comes_back_and_what_nobody_can_read_is_left_out() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": signature.sign("Hm.")},
        {"type": "redacted_thinking", "data": "x"},
        text("Yes."),
    ]
    found = asked(messages=[USER, {"role": "assistant", "content": blocks}, USER]).messages[1]
    assert (found.reasoning_content, found.content) == ("Hm.", "Yes.")


def test_a_changed_thought_is_refused() -> None:
    block = {"type": "thinking", "thinking": "Hm!", "signature": signature.sign("Hm.")}
    with pytest.raises(InvalidRequestError, match="cannot be modified"):
        asked(messages=[USER, {"role": "assistant", "content": [block]}, USER])


def test_documents_that_are_text() -> None:
    plain = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "words"}}
    parts = {"type": "document", "source": {"type": "content", "content": [text("a"), text("b")]}}
    found = {"type": "search_result", "title": "T", "source": "S", "content": [text("words")]}
    (said,) = asked(messages=[{"role": "user", "content": [plain, parts, found]}]).messages
    assert said.content == "T\nwords\na\nb\nT (S)\nwords"


def test_a_prefilled_answer_is_continued() -> None:
    found = asked(messages=[USER, {"role": "assistant", "content": "The answer is ("}])
    assert found.continue_final
    assert found.messages[-1] == Message(role="assistant", content="The answer is (")


def test_cache_control_is_found_wherever_it_stands() -> None:
    marked = {"cache_control": EPHEMERAL}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text("x", **marked)]}
    for fields in (
        marked,
        {"system": [text("x", **marked)]},
        {"tools": [TOOL | marked]},
        {"messages": [{"role": "user", "content": [text("x", **marked)]}]},
        {"messages": [{"role": "user", "content": [result]}]},
    ):
        assert translate.marks_cache(decoded(**fields))
        asked(**fields)
    assert not translate.marks_cache(decoded(system=[text("x")], tools=[TOOL]))


# ---- options


def test_options() -> None:
    found = asked(
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        stop_sequences=["\n\nHuman:"],
        metadata={"user_id": "u"},
        service_tier="auto",
        diagnostics={"previous_message_id": None},
        billing_policy={"type": "billing_policy"},
        fallbacks="default",
    )
    assert found.options == {
        "max_tokens": 100,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stop": ("\n\nHuman:",),
    }


@pytest.mark.parametrize(
    ("choice", "mode", "parallel"),
    [
        ({"type": "auto"}, ToolChoice(), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(), False),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice(mode="required"), False),
        ({"type": "tool", "name": "weather"}, ToolChoice(mode="named", name="weather"), True),
        ({"type": "none"}, ToolChoice(mode="none"), True),
    ],
)
def test_tool_choice(choice: dict[str, Any], mode: ToolChoice, parallel: bool) -> None:
    found = asked(tools=[TOOL], tool_choice=choice)
    assert (found.tool_choice, found.parallel_tool_calls) == (mode, parallel)
    function = {"name": "weather", "description": "Tells the weather", "parameters": SCHEMA}
    assert found.tools == ({"type": "function", "function": function},)


def test_examples_of_a_tools_input_are_told() -> None:
    (tool,) = asked(tools=[TOOL | {"input_examples": [{"city": "Bern"}]}]).tools
    assert tool["function"]["description"] == 'Tells the weather\nExample input: {"city": "Bern"}'


@pytest.mark.parametrize(
    ("fields", "think", "budget"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 50}}, True, 50),
        ({"thinking": {"type": "enabled"}}, True, None),
        ({"thinking": {"type": "adaptive"}}, True, None),
        ({"thinking": {"type": "between_tools"}}, False, None),
        ({"thinking": {"type": "between_tools"}, "messages": [CALLED, RESULT]}, True, None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "low", None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}}, "max", None),
        ({"thinking": {"type": "disabled"}}, False, None),
        ({"output_config": {"effort": "low"}}, False, None),
    ],
)
def test_thinking(fields: dict[str, Any], think: Any, budget: int | None) -> None:
    found = asked(**fields)
    assert (found.think, found.think_budget, found.think_if_able) == (think, budget, True)


def test_an_output_format_constrains_the_answer() -> None:
    found = asked(output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    assert found.constraint is not None
    assert json.loads(found.constraint.json_schema or "") == SCHEMA | {"additionalProperties": False}


def test_keep_alive_counts_only_when_it_is_switched_on() -> None:
    body = decoded(keep_alive="1h")
    assert translate.messages(body).keep_alive is None
    assert translate.messages(body, keep_alive=True).keep_alive == "1h"


# ---- refusals


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": [{"role": "user", "content": [text("x"), IMAGE]}]}, r"messages\[0\].content\[1\].*type image"),
        ({"messages": [{"role": "assistant", "content": [IMAGE]}, USER]}, r"type image"),
        ({"container": "c"}, "container"),
        ({"compaction": {"type": "summarize"}}, "compaction"),
        ({"mcp_servers": [{"type": "url", "name": "n", "url": "u"}]}, "mcp_servers"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, r"tools\[0\]: web_search_20250305"),
        ({"tools": [TOOL | {"defer_loading": True}]}, "defer_loading"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]}]},
            "type document",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "t", "content": [text("x"), IMAGE]}],
                    }
                ]
            },
            r"messages\[0\].content\[0\].content\[1\].*type image",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        asked(**fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"messages": []}, "messages"),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "max_tokens must be greater"),
        ({"tools": [{"name": "f"}]}, "input_schema"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.tool.name"),
        (
            {"thinking": {"type": "adaptive"}, "messages": [USER, {"role": "assistant", "content": "("}]},
            "when thinking is enabled",
        ),
        (
            {
                "messages": [
                    USER,
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
                ]
            },
            "tool_result",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        asked(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": None},
        {"max_tokens": -1},
        {"temperature": 1.5},
        {"top_k": -1},
        {"stop_sequences": [""]},
        {"nonsense": 1},
        {"tools": [TOOL | {"name": "get weather"}]},
        {"tools": [TOOL | {"name": "w" * 129}]},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "server_tool_use"}]}]},
    ],
)
def test_what_is_not_of_the_api_is_no_request(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoded(**fields)


# ---- anything at all

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
BLOCKS = st.lists(
    st.one_of(
        st.builds(text, WORDS),
        st.builds(lambda words: {"type": "thinking", "thinking": words, "signature": signature.sign(words)}, WORDS),
        st.builds(
            lambda given: {"type": "tool_use", "id": "t", "name": "f", "input": given}, st.dictionaries(WORDS, WORDS)
        ),
        st.builds(lambda given: {"type": "tool_result", "tool_use_id": "t", "content": given}, WORDS),
        st.just(IMAGE),
        st.just({"type": "redacted_thinking", "data": "x"}),
    ),
    max_size=5,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": WORDS | BLOCKS}),
    max_size=5,
)


@given(MESSAGES, st.none() | WORDS)
def test_every_conversation_is_translated_or_refused_and_no_text_is_lost(messages: Any, system: str | None) -> None:
    body = decoded(messages=messages, system=system)
    try:
        found = translate.messages(body)
    except BarrelError as error:
        assert error.code in ("invalid_request", "unsupported")
        return
    kept = json.dumps(msgspec.to_builtins(found.messages), ensure_ascii=False)
    for block in (
        block for message in messages if isinstance(message["content"], list) for block in message["content"]
    ):
        assert json.dumps(block.get("text", block.get("thinking", "")), ensure_ascii=False)[1:-1] in kept


@given(MESSAGES)
def test_a_longer_conversation_begins_as_the_shorter_one(messages: Any) -> None:
    """Append-only: what was translated stays as it was."""
    try:
        whole = translate.messages(decoded(messages=[*messages, USER])).messages
        begun = translate.messages(decoded(messages=messages)).messages
    except BarrelError:
        return
    assert whole[: len(begun)] == begun
