"""Marks of thoughts, switches of templates."""

from __future__ import annotations

import pytest

from barrel_inference.chat import reasoning
from barrel_inference.chat.output import Thinking

THINK = Thinking("<think>", "</think>")


@pytest.mark.parametrize(
    ("variables", "think", "expected"),
    [
        ({"enable_thinking"}, None, {}),
        ({"enable_thinking"}, True, {"enable_thinking": True}),
        ({"enable_thinking", "other"}, False, {"enable_thinking": False}),
        ({"thinking", "reasoning_effort"}, "high", {"thinking": True, "reasoning_effort": "high"}),
        ({"reasoning_effort"}, "max", {"reasoning_effort": "high"}),
        ({"reasoning_effort"}, False, {"reasoning_effort": "low"}),
        ({"skip_thinking"}, False, {"skip_thinking": True}),
        ({"thinking_option"}, True, {"thinking_option": "on"}),
        (set(), True, {}),
    ],
)
def test_switches(variables: set[str], think: reasoning.Think, expected: dict[str, object]) -> None:
    assert reasoning.switches(frozenset(variables), think) == expected


def test_known_marks() -> None:
    assert reasoning.known(["nothing", "a <think> b </think>"]) == THINK
    assert reasoning.known(["<think> only"]) is None


def test_marks_are_learned_from_two_renderings() -> None:
    with_reasoning = "<a>assistant\n<<ponder>>\nWHY\n<</ponder>>\nWHAT<end>"
    assert reasoning.learn(with_reasoning, "<a>assistant\nWHAT<end>", "WHY", "WHAT") == Thinking(
        "<<ponder>>", "<</ponder>>"
    )
    assert reasoning.learn("no reason", "WHAT", "WHY", "WHAT") is None


@pytest.mark.parametrize(
    ("tail", "is_open", "closing"),
    [
        ("<|assistant|>", False, "<think>\n\n</think>\n\n"),
        ("<|assistant|><think>\n", True, "\n</think>\n\n"),
        ("<|assistant|><think>\n\n</think>\n\n", False, ""),
    ],
)
def test_what_a_prompt_ends_with(tail: str, is_open: bool, closing: str) -> None:
    assert reasoning.is_open(tail, THINK) is is_open
    assert reasoning.closed(tail, THINK) == closing


def test_a_model_without_thoughts_has_none_open() -> None:
    assert not reasoning.is_open("<think>", None)
