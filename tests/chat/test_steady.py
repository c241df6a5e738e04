"""What agents change with every request at the head of their prompts goes; all else stays as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.chat import steady
from barrel_inference.types import Message

HEADER = "x-anthropic-billing-header: cc_version=2.1.{}; cc_entrypoint=cli; cch={};"
REST = "You are a coding agent.\nKeep a=b; as it is."


@pytest.mark.parametrize("between", ["", "\n", "\n\n", " "])
def test_two_requests_of_an_agent_begin_the_same(between: str) -> None:
    one, two = (HEADER.format(*parts) + between + REST for parts in (("100.7b4", "eb6c6"), ("100.0d9", "fa690")))
    assert steady.text(one, "billing") == steady.text(two, "billing") == REST


def test_a_header_without_its_last_semicolon_goes_too() -> None:
    assert steady.text("x-anthropic-billing-header: cch=eb6c6\nHello", "billing") == "Hello"


def test_only_the_head_is_looked_at() -> None:
    text = f"What does {HEADER} mean?"
    assert steady.text(text, "billing") == text


def test_a_system_message_that_was_only_a_header_is_left_out() -> None:
    said = Message(role="user", content=HEADER)
    assert steady.messages([Message(role="system", content=HEADER), said], "billing") == (said,)


def test_parts_of_a_system_message_are_looked_at_one_by_one() -> None:
    parts = [{"type": "text", "text": HEADER}, {"type": "text", "text": REST}]
    (found,) = steady.messages([Message(role="system", content=parts)], "billing")
    assert found.content == [{"type": "text", "text": REST}]


@pytest.mark.parametrize(
    "time", ["2026-11-29T18:04:23Z", "2026-11-29 18:04", "2026-11-29T18:04:23.123+01:00", "2026-11-29 18:04:23 UTC"]
)
def test_the_time_of_day_goes_only_when_wanted(time: str) -> None:
    text = f"Now it is {time}. Be brief."
    assert steady.text(text, "clock") == "Now it is 2026-11-29. Be brief."
    assert steady.text(text, "billing") == text


@given(st.text())
def test_switched_off_nothing_changes(text: str) -> None:
    given = (Message(role="system", content=HEADER + text),)
    assert steady.messages(given, "off") == given


@given(st.text().filter(lambda text: "x-anthropic" not in text))
def test_other_texts_stay(text: str) -> None:
    assert steady.text(text, "billing") == text
