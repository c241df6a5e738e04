"""gpt-oss: channels and recipients."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.chat.tools.harmony import HarmonyParser
from tests.chat.pieces import fed

ANALYSIS = "<|channel|>analysis<|message|>Thinking.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>Hello."
CALL = '<|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>{"zone": "CET"}<|call|>'
OTHER_CALL = "<|start|>assistant<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{}"
TIME = ("call", ("get_time", {"zone": "CET"}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ANALYSIS + FINAL, [("thought", "Thinking."), ("text", "Hello.")]),
        (FINAL.removeprefix("<|start|>assistant"), [("text", "Hello.")]),
        (ANALYSIS + CALL, [("thought", "Thinking."), TIME]),
        (ANALYSIS + OTHER_CALL, [("thought", "Thinking."), ("call", ("get_time", {}))]),
        (CALL + CALL, [TIME, TIME]),
        (" to=functions.get_time<|channel|>commentary json<|message|>{}", [("call", ("get_time", {}))]),
        (
            "<|channel|>commentary<|message|>I look.<|end|>" + CALL,
            [("text", "I look."), TIME],
        ),
        ("Just text.", [("text", "Just text.")]),
        ("<|channel|>analysis", [("text", "<|channel|>analysis")]),
        (
            "<|channel|>commentary to=functions.f<|message|>not json<|call|>",
            [("text", "<|channel|>commentary to=functions.f<|message|>not json")],
        ),
    ],
)
def test_messages(text: str, expected: object) -> None:
    assert fed(HarmonyParser(), text) == expected
    assert fed(HarmonyParser(), text, range(1, len(text))) == expected


def test_a_prompt_that_opens_the_thought() -> None:
    assert fed(HarmonyParser(thinking=True), "So.<|end|>" + FINAL) == [("thought", "So."), ("text", "Hello.")]


MARKS = [
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|start|>",
    "<|call|>",
    "analysis",
    "final",
    "assistant",
    "{}",
    "t",
    " ",
]
MARKS += [" to=functions.f", "commentary", "text", "<", "|", "<|"]


@given(st.lists(st.sampled_from(MARKS), max_size=20), st.booleans(), st.data())
def test_any_split_gives_the_same_events(parts: list[str], thinking: bool, data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    whole = fed(HarmonyParser(thinking=thinking), text)
    assert fed(HarmonyParser(thinking=thinking), text, cuts) == whole
    assert fed(HarmonyParser(thinking=thinking), text, range(1, len(text))) == whole
