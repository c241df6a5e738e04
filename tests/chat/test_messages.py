"""The same conversation for templates that can say less: nothing lost, nothing moved."""

from __future__ import annotations

import json
from typing import Any

import pytest

from barrel_inference.chat.messages import Form, conform, short_id


def say(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(call_id: str, name: str = "f", arguments: str = '{"a": 1}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def roles(messages: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(message["role"], message["content"]) for message in messages]


FULL = Form(native_calls=True, native_definitions=True)


def test_plain_messages_stay_as_they_are() -> None:
    talk = [say("system", "S"), say("user", "U"), say("assistant", "A")]
    assert conform(talk, FULL) == talk


def test_text_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert roles(conform([say("user", parts)], FULL)) == [("user", "a\nb")]
    typed = conform([say("user", "x")], FULL._replace(typed_content=True))
    assert typed[0]["content"] == [{"type": "text", "text": "x"}]


def test_developer_messages_are_system_messages_to_most() -> None:
    assert roles(conform([say("developer", "D"), say("user", "U")], FULL)) == [("system", "D"), ("user", "U")]
    assert conform([say("developer", "D")], FULL._replace(developer=True))[0]["role"] == "developer"


def test_a_system_message_that_would_move_stays_with_the_next_user_message() -> None:
    form = FULL._replace(late_system=False)
    talk = [say("system", "S"), say("user", "U"), say("assistant", "A"), say("system", "late"), say("user", "V")]
    assert roles(conform(talk, form)) == [("system", "S"), ("user", "U"), ("assistant", "A"), ("user", "late\n\nV")]
    assert roles(conform(talk[:4], form))[-1] == ("user", "late")


def test_without_a_system_role_its_text_goes_to_the_user() -> None:
    form = FULL._replace(system=False)
    assert roles(conform([say("system", "S"), say("user", "U")], form)) == [("user", "S\n\nU")]


def test_roles_that_must_alternate_are_merged() -> None:
    form = FULL._replace(repeated_roles=False)
    assert roles(conform([say("user", "a"), say("user", "b")], form)) == [("user", "a\n\nb")]


def test_arguments_as_objects_or_as_text() -> None:
    talk = [say("assistant", None, tool_calls=[call("x")])]
    assert conform(talk, FULL)[0]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    text = conform(talk, FULL._replace(object_arguments=False))[0]["tool_calls"][0]["function"]["arguments"]
    assert text == '{"a": 1}'


@pytest.mark.parametrize("cut_off", ['{"city": "Par', "[1]", "no", "[" * 100_000])
def test_arguments_that_are_no_object_are_kept_in_one(cut_off: str) -> None:
    talk = [say("assistant", "", tool_calls=[call("x", arguments=cut_off)])]
    (shaped,) = conform(talk, FULL)
    assert shaped["tool_calls"][0]["function"]["arguments"] == {"INVALID_JSON": cut_off}
    assert json.dumps(cut_off) in conform(talk, Form())[0]["content"]


def test_text_beside_calls_gets_a_message_of_its_own() -> None:
    talk = [say("assistant", "Let me see.", tool_calls=[call("x")], reasoning_content="hm")]
    form = FULL._replace(text_beside_calls=False, reasoning_key="reasoning_content")
    first, second = conform(talk, form)
    assert (first["content"], first["reasoning_content"], "tool_calls" in first) == ("Let me see.", "hm", False)
    assert (second["content"], "reasoning_content" in second, len(second["tool_calls"])) == ("", False, 1)


def test_several_calls_come_one_by_one_with_their_results() -> None:
    talk = [
        say("assistant", "", tool_calls=[call("x"), call("y")]),
        say("tool", "of y", tool_call_id="y"),
        say("tool", "of x", tool_call_id="x"),
        say("user", "thanks"),
    ]
    found = conform(talk, FULL._replace(parallel_calls=False))
    assert [(m["role"], m.get("tool_call_id") or [c["id"] for c in m.get("tool_calls", ())]) for m in found] == [
        ("assistant", ["x"]),
        ("tool", "x"),
        ("assistant", ["y"]),
        ("tool", "y"),
        ("user", []),
    ]


def test_a_template_without_tools_gets_calls_and_results_as_text() -> None:
    talk = [say("assistant", "So.", tool_calls=[call("x")]), say("tool", "42", tool_call_id="x")]
    assert roles(conform(talk, Form())) == [
        ("assistant", 'So.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'),
        ("user", "<tool_response>\n42\n</tool_response>"),
    ]


def test_ids_of_nine_letters() -> None:
    talk = [say("assistant", "", tool_calls=[call("call_long")]), say("tool", "r", tool_call_id="call_long")]
    first, second = conform(talk, FULL._replace(short_ids=True))
    assert first["tool_calls"][0]["id"] == second["tool_call_id"] == short_id("call_long")
    assert len(short_id("call_long")) == 9
    assert short_id("abcdefghi") == "abcdefghi"


def test_calls_without_ids_and_their_results_are_paired_in_order() -> None:
    calls = [{"function": call("", name)["function"]} for name in ("f", "g")]
    talk = [say("assistant", "", tool_calls=calls), say("tool", "of f"), say("tool", "of g")]
    one, *results = conform(talk, FULL)
    assert [each["id"] for each in one["tool_calls"]] == ["call00000", "call00001"]
    assert [(each["tool_call_id"], each["name"]) for each in results] == [("call00000", "f"), ("call00001", "g")]


def test_what_is_said_in_another_way_grows_at_the_end_as_well() -> None:
    talk = [
        say("system", "S"),
        say("user", "U"),
        say("assistant", "T", tool_calls=[call("x"), call("y")]),
        say("tool", "1", tool_call_id="x"),
        say("tool", "2", tool_call_id="y"),
        say("assistant", "A"),
        say("system", "late"),
        say("user", "V"),
    ]
    hard = Form(native_calls=True, parallel_calls=False, text_beside_calls=False, late_system=False)
    whole = conform(talk, hard)
    for count in (1, 2, 5, 6, 8):
        head = conform(talk[:count], hard)
        assert whole[: len(head)] == head
