"""gpt-oss: channels and recipients."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.chat.events import CallArguments, CallEnded
from barrel_inference.chat.tools import harmony
from barrel_inference.chat.tools.harmony import HarmonyParser
from tests.chat.pieces import TOOLS, fed
from tests.chat.tools.test_families import SCHEMAS, walk

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
MARKS += [" to=functions.f", "<|channel|>commentary to=functions.f", '{"a":', "commentary", "text", "<", "|", "<|"]


@given(st.lists(st.sampled_from(MARKS), max_size=20), st.booleans(), st.booleans(), st.data())
def test_any_split_gives_the_same_events(parts: list[str], thinking: bool, sure: bool, data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    whole = fed(HarmonyParser(thinking=thinking, sure_calls=sure), text)
    assert fed(HarmonyParser(thinking=thinking, sure_calls=sure), text, cuts) == whole
    assert fed(HarmonyParser(thinking=thinking, sure_calls=sure), text, range(1, len(text))) == whole


USUAL = '<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{"zone": "<|end|>"}'


def test_sure_arguments_come_out_as_they_are_written() -> None:
    reader = HarmonyParser(sure_calls=True)
    assert reader.feed(USUAL[:-4])[1:] == [CallArguments(call=0, text='{"zone": "<|end')]
    assert reader.feed("|") == [CallArguments(call=0, text="|")]
    assert reader.feed('>"}') == [CallArguments(call=0, text='>"}'), CallEnded(call=0)]
    assert reader.feed("<|call|>") + reader.finish() == []


def test_a_sure_call_that_is_cut_off_is_not_lost() -> None:
    written = USUAL[:-4]
    assert fed(HarmonyParser(sure_calls=True), written) == [
        ("unfinished", ("get_time", written.partition("<|message|>")[2], written))
    ]


def test_calls_under_the_grammar_are_read() -> None:
    for lark in (harmony.sure_calls_rule(SCHEMAS), harmony.answers(harmony.calls_rule(SCHEMAS), thought=False)):
        for seed in range(3):
            text = walk(lark, seed)
            text = text if text.startswith("<|channel|>") else harmony.CALL + text
            ((kind, (name, arguments)),) = fed(HarmonyParser(sure_calls=True), text)
            assert kind == "call" and set(arguments) <= set(TOOLS[name]["properties"])
