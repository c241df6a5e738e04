"""Every known syntax reads what it writes: grammar and reader are made from one description."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import llguidance
import llguidance.numpy
import pytest
from llguidance import LLMatcher, LLTokenizer

from barrel_inference.chat import schema
from barrel_inference.chat.output import OutputParser, Shape
from barrel_inference.chat.tools import grammar
from barrel_inference.chat.tools.families import FAMILIES
from barrel_inference.chat.tools.syntax import Syntax, write_calls
from tests.chat.pieces import TOOLS, fed

SYNTAXES = [syntax for _, syntax in FAMILIES]
EOS = 256


class Bytes:
    """A vocabulary of single bytes."""

    eos_token_id = EOS
    bos_token_id = None
    special_token_ids = (EOS,)
    tokens = (*(bytes([value]) for value in range(256)), b"\xff<eos>")

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


TOKENIZER = LLTokenizer(llguidance.TokenizerWrapper(Bytes()))  # type: ignore[no-untyped-call]
SCHEMAS = {name: schema.arguments(parameters) for name, parameters in TOOLS.items()}


def matcher(lark: str) -> LLMatcher:
    made = LLMatcher(TOKENIZER, LLMatcher.grammar_from_lark(lark))
    assert not made.is_error(), made.get_error()
    return made


ENDINGS = ("</parameter>", "\n</parameter>\n", "</arg_value>\n", "</｜DSML｜parameter>\n", '<|"|>', "<escape>", '"')


def walk(lark: str, seed: int, limit: int = 600, endings: Sequence[str] = ENDINGS) -> str:
    """A text that the grammar allows, brought to an end as soon as it may end; free text ends after some letters."""
    chooser = random.Random(seed)
    made = matcher(lark)
    mask: Any = llguidance.numpy.allocate_token_bitmask(1, 257)
    written = bytearray()
    for _ in range(limit):
        llguidance.numpy.fill_next_token_bitmask(made, mask)
        allowed = [token for token in range(257) if mask[0][token // 32] >> (token % 32) & 1]
        if EOS in allowed:
            return written.decode()
        ending = list(chooser.choice(endings).encode())
        if chooser.random() < 0.3 and made.validate_tokens(ending) == len(ending):
            written += bytes(ending)
            made.consume_tokens(ending)
            continue
        closing = [token for token in allowed if chr(token) in '"}])<>/\n' and chooser.random() < 0.7]
        plain = [token for token in allowed if 32 <= token < 127]
        written.append(chooser.choice(closing or plain or allowed))
        made.consume_token(written[-1])
    pytest.fail(f"no end after {limit} bytes: {written.decode(errors='replace')}")


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)
@pytest.mark.parametrize("opened", [False, True])
def test_a_call_written_under_the_grammar_is_read(syntax: Syntax, opened: bool) -> None:
    lark = grammar.calls(syntax, SCHEMAS, parallel=True, opened=opened)
    for seed in range(3):
        head = syntax.triggers[0] if opened and syntax.triggers else ""
        text = head + walk(lark, seed)
        events = fed(OutputParser(Shape(None, syntax), TOOLS), text)
        assert events and all(kind == "call" for kind, _ in events), text
        for _, (name, arguments) in events:
            assert name in TOOLS
            assert set(arguments) <= set(TOOLS[name]["properties"])
            assert set(TOOLS[name].get("required", ())) <= set(arguments)


def test_a_grammar_without_parallel_calls_allows_one() -> None:
    for syntax in SYNTAXES:
        text = walk(grammar.calls(syntax, SCHEMAS, parallel=False), 1)
        made = matcher(grammar.calls(syntax, SCHEMAS, parallel=False))
        assert made.try_consume_tokens(list((text * 2).encode())) < len((text * 2).encode()), syntax.name


def test_definitions_and_references_reach_the_arguments() -> None:
    shared = {
        "type": "object",
        "properties": {"place": {"$ref": "#/$defs/Place"}},
        "required": ["place"],
        "$defs": {"Place": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
    }
    for syntax in SYNTAXES:
        text = walk(grammar.calls(syntax, {"go": schema.arguments(shared)}, parallel=False), 2)
        ((_, (name, arguments)),) = fed(OutputParser(Shape(None, syntax), {"go": shared}), text)
        assert name == "go"
        assert isinstance(arguments["place"]["x"], int), text


HELD: dict[str, tuple[dict[str, Any], Callable[[Any], bool]]] = {
    "const": ({"type": "string", "const": "a/b"}, lambda value: value == "a/b"),
    "enum": ({"type": "string", "enum": ["x", "y"]}, lambda value: value in ("x", "y")),
    "pattern": ({"type": "string", "pattern": "^[a-c]/[0-9]{2}$"}, lambda value: re.fullmatch("[a-c]/[0-9]{2}", value)),
    "part": ({"type": "string", "pattern": "[/}]"}, lambda value: "/" in value or "}" in value),
    "length": ({"type": "string", "minLength": 2, "maxLength": 3}, lambda value: 2 <= len(value) <= 3),
    "both": ({"type": "string", "minLength": 2, "pattern": "^[a-c]{1,3}$"}, lambda value: 2 <= len(value) <= 3),
    "date": ({"type": "string", "format": "date"}, lambda value: re.fullmatch(r"\d{4}-\d\d-\d\d", value)),
    "number": ({"type": "integer", "minimum": 3, "maximum": 5}, lambda value: value in (3, 4, 5)),
    "choice": ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, lambda value: value in (True, False, None)),
    "types": ({"type": ["boolean", "null"]}, lambda value: value in (True, False, None)),
    "reference": ({"$ref": "#/$defs/D"}, lambda value: isinstance(value["x"], int)),
    "sibling": ({"$ref": "#/properties/other"}, lambda value: isinstance(value, bool)),
    "list": (
        {"type": "array", "items": {"enum": [1]}, "minItems": 2, "maxItems": 3},
        lambda value: len(value) in (2, 3),
    ),
}
SHARED = {"D": {"type": "object", "properties": {"x": {"type": "integer", "maximum": 99}}, "required": ["x"]}}


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)
def test_arguments_are_held_to_their_schema_in_every_notation(syntax: Syntax) -> None:
    for name, (held, holds) in HELD.items():
        properties = {"value": held, "other": {"type": "boolean"}}
        given = {"type": "object", "properties": properties, "required": ["value"], "$defs": SHARED}
        text = walk(grammar.calls(syntax, {"go": schema.arguments(given)}, parallel=False), 3)
        ((_, (called, arguments)),) = fed(OutputParser(Shape(None, syntax), {"go": given}), text)
        assert called == "go" and holds(arguments["value"]), (name, text)


def test_control_tokens_take_the_place_of_their_text() -> None:
    lark = 'start: "a<|x|>b" t /"<|x|>"/ %json {"const": "<|x|>"}\nt[suffix="\\n<|x|>"]: /(?s:.*)/\n'
    found = grammar.control_tokens(lark, {"<|x|>": 7})
    assert found.splitlines() == [
        'start: "a" <[7]> "b" t /"<|x|>"/ %json {"const": "<|x|>"}',
        "t: t_body <[7]>",
        't_body[suffix="\\n"]: /(?s:.*)/',
    ]
    assert grammar.control_tokens('start: "plain"', {"<|x|>": 7}) == 'start: "plain"'


def test_names_of_tools_are_quoted() -> None:
    lark = grammar.calls(SYNTAXES[0], {'we"ird': schema.arguments({})}, parallel=False)
    assert json.dumps('we"ird') in lark
    matcher(lark)


VALUES = {"city": 'Pa"r\nis <b> é', "days": 3, "exact": True, "list": [1, "a"], "none": None, "deep": {"x": {"y": 1.5}}}


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)
def test_what_is_written_for_a_model_is_read_again(syntax: Syntax) -> None:
    properties = {key: {} if key != "city" else {"type": "string"} for key in VALUES}
    tools = {"get_weather": {"properties": properties}, "get_time": {}}
    calls = [("get_weather", VALUES), ("get_time", {})]
    text = write_calls(syntax, calls)
    assert fed(OutputParser(Shape(None, syntax), tools), text) == [("call", call) for call in calls]
