"""The parser of answers: whatever the cuts, the same events; nothing lost; partial marks held back."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.chat.events import CallArguments, CallEnded, CallStarted, Content, Reasoning
from barrel_inference.chat.output import OutputParser, Shape, Thinking
from barrel_inference.chat.tools.families import FAMILIES, command, glm, hermes, kimi, llama3, mistral, qwen_coder
from barrel_inference.chat.tools.json_calls import KeyedJsonCall
from barrel_inference.chat.tools.syntax import Syntax, write_calls
from tests.chat.pieces import TOOLS, fed

THINK = Thinking("<think>", "</think>")
HERMES = Shape(THINK, hermes.SYNTAX)


def parser(shape: Shape = HERMES, *, thinking: bool = False, sure: bool = False) -> OutputParser:
    return OutputParser(shape, TOOLS, thinking=thinking, sure_calls=sure)


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
PARIS = ("call", ("get_weather", {"city": "Paris"}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello.", [("text", "Hello.")]),
        (" Hello. \n", [("text", " Hello. \n")]),
        ("<think>\nwhy\n</think>\n\nHello", [("thought", "why"), ("text", "Hello")]),
        ("\n<think>why</think>Hello", [("thought", "why"), ("text", "Hello")]),
        ("<think>endless", [("thought", "endless")]),
        ("</think>\n\nHello", [("text", "Hello")]),
        ("say <think> aloud</think>", [("text", "say <think> aloud</think>")]),
        (CALL, [PARIS]),
        (f"Well.\n{CALL}", [("text", "Well."), PARIS]),
        (f"{CALL}\n{CALL}", [PARIS, PARIS]),
        (f"<think>hm</think>{CALL}\ndone", [("thought", "hm"), PARIS, ("text", "done")]),
        ("a <tool_cal", [("text", "a <tool_cal")]),
        ("<tool_call>no</tool_call>", [("text", "<tool_call>no</tool_call>")]),
        ('<tool_call>{"name": "x"', [("text", '<tool_call>{"name": "x"')]),
        (f"<tool_call> oops {CALL}", [("text", "<tool_call> oops"), PARIS]),
        (CALL.removesuffix("</tool_call>"), [PARIS]),
    ],
)
def test_hermes(text: str, expected: object) -> None:
    assert fed(parser(), text) == expected
    assert fed(parser(), text, range(1, len(text))) == expected


def test_a_thought_that_the_prompt_has_opened() -> None:
    text = "hm\n</think>\n\nyes"
    for cuts in ((), range(1, len(text))):
        assert fed(parser(thinking=True), text, cuts) == [("thought", "hm"), ("text", "yes")]


def test_a_closing_mark_inside_an_argument_does_not_end_the_call() -> None:
    call = '<tool_call>{"name": "get_time", "arguments": {"zone": "</tool_call>"}}</tool_call>'
    assert fed(parser(), call) == [("call", ("get_time", {"zone": "</tool_call>"}))]
    tagged = "<tool_call>get_time<arg_key>zone</arg_key><arg_value>a</arg_value>b</arg_value></tool_call>"
    assert fed(parser(Shape(None, glm.SYNTAX)), tagged) == [("call", ("get_time", {"zone": "a</arg_value>b"}))]


def test_raw_line_ends_in_json_strings_are_taken() -> None:
    call = '<tool_call>{"name": "get_time", "arguments": {"zone": "a\nb"}}</tool_call>'
    assert fed(parser(), call) == [("call", ("get_time", {"zone": "a\nb"}))]


def test_white_space_of_tagged_values_is_kept() -> None:
    text = (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n  Paris\n\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
    )
    shape = Shape(None, qwen_coder.SYNTAX)
    assert fed(parser(shape), text) == [("call", ("get_weather", {"city": "  Paris\n", "days": 3}))]


def test_a_bare_object_is_a_call_only_of_a_known_tool_and_only_at_the_beginning() -> None:
    shape = Shape(None, llama3.SYNTAX)
    known = '{"name": "get_time", "parameters": {}}'
    other = '{"name": "Ada", "parameters": {}}'
    assert fed(parser(shape), known) == [("call", ("get_time", {}))]
    assert fed(parser(shape), other) == [("text", other)]
    assert fed(parser(shape), f"so: {known}") == [("text", f"so: {known}")]


def test_several_calls_in_one_section() -> None:
    text = '[TOOL_CALLS][{"name": "get_time", "arguments": {}}, {"name": "get_weather", "arguments": {"city": "X"}}] ok'
    shape = Shape(None, mistral.ARRAY_SYNTAX)
    expected = [("call", ("get_time", {})), ("call", ("get_weather", {"city": "X"})), ("text", "ok")]
    assert fed(parser(shape), text) == expected


def test_text_comes_out_as_soon_as_it_cannot_be_a_mark() -> None:
    reader = parser()
    assert reader.feed("Hello <") == [Content(text="Hello")]
    assert reader.feed("b") == [Content(text=" <b")]
    assert reader.feed(">") == [Content(text=">")]


def test_thoughts_come_out_as_they_grow() -> None:
    reader = parser()
    assert reader.feed("<think>one") == [Reasoning(text="one")]
    assert reader.feed(" two </thi") == [Reasoning(text=" two")]
    assert reader.feed("nk>") == []


def test_without_a_syntax_calls_are_text() -> None:
    assert fed(parser(Shape(THINK)), CALL) == [("text", CALL)]


MARKS = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "\n",
    " ",
    "{",
    "}",
    '"',
    "name",
    "get_time",
    ":",
    ",",
    "[",
    "]",
]
MARKS += ["<function=", "<parameter=", ">", "</parameter>", "</function>", "<arg_key>", "</arg_key>", "<arg_value>"]
MARKS += ["[TOOL_CALLS]", "[ARGS]", '{"name": "get_time", "arguments": {}}', "text", "<", "zone", "a"]


@given(
    st.lists(st.sampled_from(MARKS), max_size=25), st.sampled_from(FAMILIES), st.booleans(), st.booleans(), st.data()
)
def test_any_split_gives_the_same_events(
    parts: list[str], family: tuple[object, Syntax], thinking: bool, sure: bool, data: st.DataObject
) -> None:
    """Also of calls that are said to be sure and are not."""
    text = "".join(parts)
    shape = Shape(THINK, family[1])
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    whole = fed(parser(shape, thinking=thinking, sure=sure), text)
    assert fed(parser(shape, thinking=thinking, sure=sure), text, cuts) == whole
    assert fed(parser(shape, thinking=thinking, sure=sure), text, range(1, len(text))) == whole


@given(st.text(alphabet="ab <>/{}[]\"':,\n", max_size=60))
def test_text_without_marks_is_not_changed(text: str) -> None:
    assert fed(parser(), text) == ([("text", text)] if text else [])


# ---- calls that a grammar makes sure of

KEYED = Syntax("keyed", KeyedJsonCall(), section=("<t>[", "]</t>"), separator=", ")
AS_JSON = [hermes.SYNTAX, mistral.SYNTAX, mistral.ARRAY_SYNTAX, kimi.SYNTAX, command.SYNTAX, llama3.SYNTAX, KEYED]


@pytest.mark.parametrize("syntax", AS_JSON, ids=lambda syntax: syntax.name)
def test_sure_arguments_come_out_as_they_are_written(syntax: Syntax) -> None:
    calls: list[tuple[str, dict[str, object]]] = [
        ("get_weather", {"city": 'Pa"r\\is\n{é}', "days": 3}),
        ("get_time", {"zone": "CET"}),
    ]
    text = write_calls(syntax, calls)
    reader = parser(Shape(None, syntax), sure=True)
    seen = ""
    for letter in text:
        events = reader.feed(letter)
        seen += letter
        if "CE" in seen and "CET" not in seen:
            assert events == [CallArguments(call=1, text=letter)], "at once"
    assert fed(parser(Shape(None, syntax), sure=True), text) == [("call", call) for call in calls]
    assert fed(parser(Shape(None, syntax), sure=True), text, range(1, len(text))) == [("call", call) for call in calls]


def test_a_call_that_nothing_makes_sure_of_comes_out_whole() -> None:
    reader = parser()
    events = list(itertools.chain.from_iterable(map(reader.feed, CALL)))
    assert [type(event) for event in events] == [CallStarted, CallArguments, CallEnded]


@pytest.mark.parametrize("syntax", AS_JSON, ids=lambda syntax: syntax.name)
def test_a_sure_call_that_is_cut_off_is_not_lost(syntax: Syntax) -> None:
    """Wherever that happens: what came out of it together is what the model wrote."""
    text = write_calls(syntax, [("get_weather", {"city": 'a \\ "b" {c}', "days": 12})])
    for cut in range(1, len(text)):
        ((kind, value),) = fed(parser(Shape(None, syntax), sure=True), text[:cut])
        if kind == "text":
            assert value == text[:cut]
        elif kind == "unfinished":
            name, arguments, written = value
            assert name == "get_weather" and written == text[:cut] and written.endswith(arguments)
        else:
            assert value == ("get_weather", {"city": 'a \\ "b" {c}', "days": 12})
        assert fed(parser(Shape(None, syntax), sure=True), text[:cut], range(1, cut)) == [(kind, value)]


def test_a_long_argument_is_read_once() -> None:
    """A file as an argument, a few letters at a time: to read it all again with each of them would take minutes."""
    arguments = {"city": "x {[\\" * 40_000}
    text = f"<tool_call>\n{json.dumps({'name': 'get_weather', 'arguments': arguments})}\n</tool_call>"
    assert fed(parser(sure=True), text, range(8, len(text), 8)) == [("call", ("get_weather", arguments))]
