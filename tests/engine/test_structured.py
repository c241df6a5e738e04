"""Constraints on the stub's vocabulary: whatever is drawn among the allowed tokens matches in the end."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from barrel_inference.chat.schema import arguments
from barrel_inference.chat.tools.families import FAMILIES
from barrel_inference.chat.tools.grammar import calls
from barrel_inference.chat.tools.syntax import Syntax, write_calls
from barrel_inference.config import LoadOptions
from barrel_inference.engine.structured import COMPILED_KEPT, MAX_GBNF_RULES, MAX_RULES, STACK_BYTES, Mask, Structured
from barrel_inference.engine.stub import StubBackend
from barrel_inference.errors import OutOfMemoryError, SchemaError
from barrel_inference.types import Constraint

BACKEND = StubBackend(LoadOptions(id="m", backend="stub"))
GBNF = 'root ::= name ("," name)*\nname ::= [a-c]+ | "é"'
LARK = 'start: "<" NAME ">"\nNAME: /[a-c]{1,9}/'
PERSON = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["a", "b", None]}, "maxItems": 3},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def structured() -> Structured:
    return Structured(BACKEND)


def tokens_of(text: str) -> list[int]:
    return BACKEND.tokenize(text.encode(), add_special=False, parse_special=True)


def allowed_tokens(mask: Mask) -> list[int]:
    logits = np.zeros(BACKEND.info.n_vocab, np.float32)
    mask.mask(logits)
    return [int(token) for token in np.flatnonzero(logits == 0)]


def allowed(mask: Mask) -> set[bytes]:
    return {BACKEND.piece(token, special=True) for token in allowed_tokens(mask)}


def draw(mask: Mask, seed: int, limit: int = 2000) -> str:
    """Tokens drawn at random from what is allowed, until the end is chosen or the only choice."""
    random = np.random.default_rng(seed)
    tokens: list[int] = []
    while not mask.is_complete:
        logits = random.normal(0, 1, BACKEND.info.n_vocab).astype(np.float32)
        mask.mask(logits)
        token = int(logits.argmax())
        if BACKEND.is_eog(token):
            break
        mask.accept(token)
        tokens.append(token)
        assert len(tokens) < limit
    return b"".join(BACKEND.piece(token, special=False) for token in tokens).decode()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (Constraint(regex=r"[ab]{2,6}(é|€)+x"), r"[ab]{2,6}(é|€)+x"),
        (Constraint(choices=("yes", "no", "not at all")), r"yes|no|not at all"),
        (Constraint(grammar=GBNF), r"([a-c]+|é)(,([a-c]+|é))*"),
        (Constraint(grammar=LARK), r"<[a-c]{1,9}>"),
    ],
    ids=["regex", "choices", "gbnf", "lark"],
)
def test_what_is_drawn_matches(structured: Structured, constraint: Constraint, expected: str, seed: int) -> None:
    assert re.fullmatch(expected, draw(structured.mask(constraint), seed))


@pytest.mark.parametrize("seed", range(10))
def test_what_is_drawn_is_valid_against_its_schema(structured: Structured, seed: int) -> None:
    person = json.loads(draw(structured.mask(Constraint(json_schema=PERSON)), seed))
    assert {"name", "age"} <= set(person) <= {"name", "age", "tags"}
    assert len(person["name"]) <= 8 and 0 <= person["age"] <= 120
    assert set(person.get("tags", [])) <= {"a", "b", None} and len(person.get("tags", [])) <= 3


def test_the_end_is_allowed_exactly_where_the_text_may_end(structured: Structured) -> None:
    mask = structured.mask(Constraint(regex="ab+"))
    ends = {b"</s>", b"<|im_end|>"}
    for letter, may_end in (("a", False), ("b", True), ("b", True)):
        (token,) = tokens_of(letter)
        mask.accept(token)
        assert (ends <= allowed(mask)) is may_end
        assert not mask.is_complete


def test_complete_means_that_nothing_more_may_follow(structured: Structured) -> None:
    mask = structured.mask(Constraint(choices=("ab",)))
    for token in tokens_of("ab"):
        assert not mask.is_complete
        mask.accept(token)
    assert mask.is_complete


@pytest.mark.parametrize("choice", ["4999", "49", 'a\n"é\\', "/x/", "<b>", "😀"])
def test_choices_are_literal_and_may_be_thousands(structured: Structured, choice: str) -> None:
    others = [str(number) for number in range(5000)]
    mask = structured.mask(Constraint(choices=(*others, choice)))
    for token in tokens_of(choice):
        assert token in allowed_tokens(mask)
        mask.accept(token)
    assert b"</s>" in allowed(mask) or mask.is_complete


def test_a_mask_starts_after_a_marker_that_tokens_split(structured: Structured) -> None:
    mask = structured.mask(Constraint(choices=("ab",), start_after="</think>é"))
    for token in tokens_of("anything </thi </think> </think>é"):
        assert len(allowed_tokens(mask)) == BACKEND.info.n_vocab
        assert not mask.is_complete
        mask.accept(token)
    assert allowed(mask) == {b"a"}


@pytest.mark.parametrize(
    ("outside", "before"),
    [
        (("<think>", "</think>"), "<think> I say <go> and <go></think> so <"),
        (("", "</think>"), "I say <go></think> so <"),
        (("<think>", "</think>"), "so <"),
        (("<think>", "</think>"), "<think></think><think><go></think><"),
    ],
)
def test_a_mask_does_not_start_inside(structured: Structured, outside: tuple[str, str], before: str) -> None:
    mask = structured.mask(Constraint(choices=("ab",), start_after="<go>", outside=outside))
    for token in tokens_of(before + "go>"):
        assert len(allowed_tokens(mask)) == BACKEND.info.n_vocab
        mask.accept(token)
    assert allowed(mask) == {b"a"}


def test_masks_of_one_constraint_are_independent(structured: Structured) -> None:
    constraint = Constraint(choices=("ab", "cd"))
    first, second = structured.mask(constraint), structured.mask(constraint)
    first.accept(ord("a"))
    assert allowed(first) == {b"b"}
    assert allowed(second) == {b"a", b"c"}


def test_a_mask_is_rebuilt_from_tokens(structured: Structured) -> None:
    constraint = Constraint(json_schema=PERSON)
    tokens = tokens_of('{"name": "x", "age": 1')
    first, second = structured.mask(constraint), structured.mask(constraint)
    for token in tokens:
        allowed(first)
        first.accept(token)
    for token in tokens:
        second.accept(token)
    assert allowed(first) == allowed(second)


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (Constraint(), "exactly one"),
        (Constraint(regex="a", choices=("b",)), "exactly one"),
        (Constraint(choices=()), "at least one"),
        (Constraint(choices=("a", "")), "non-empty"),
        (Constraint(choices=("\ud800",)), "cannot be used"),
        (Constraint(regex="(["), "unclosed"),
        (Constraint(regex="a(?=b)"), "look-around"),
        (Constraint(regex="a\ud800"), "surrogates"),
        (Constraint(grammar="start: missing"), "missing"),
        (Constraint(grammar="root ::= missing"), "missing"),
        (Constraint(grammar=""), "[Ee]mpty"),
        (Constraint(json_schema="["), "not JSON"),
        (Constraint(json_schema="[" * 100_000), "not JSON"),
        (Constraint(json_schema="3"), "an object or a boolean"),
        (Constraint(json_schema="false"), "allows nothing"),
        (Constraint(json_schema='{"type": "frob"}'), "frob"),
        (Constraint(json_schema='{"type": "string", "not": {"const": "a"}}'), "'not'"),
        (Constraint(json_schema='{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}'), "leads back to"),
        (Constraint(json_schema='{"$ref": "http://127.0.0.1:9/x"}'), "http://127.0.0.1:9/x"),
        (Constraint(json_schema='{"const": "\\ud800"}'), "cannot be used"),
        (Constraint(json_schema='{"allOf": [{"type": "string"}, {"type": "number"}]}'), "Unsatisfiable"),
        (Constraint(json_schema='{"minLength": 5, "maxLength": 3, "type": "string"}'), "minLength"),
        (Constraint(json_schema='{"items":' * 300 + "{}" + "}" * 300), "deeper than"),
        (Constraint(grammar="start: a" + "\n" * (MAX_RULES + 1)), "lines, at most"),
        (Constraint(grammar="root ::= a" + "\n" * (MAX_GBNF_RULES + 1)), "lines, at most"),
    ],
)
def test_what_cannot_be_used_is_a_schema_error_that_says_why(
    structured: Structured, constraint: Constraint, reason: str
) -> None:
    with pytest.raises(SchemaError, match=reason):
        structured.mask(constraint)


def test_true_and_the_empty_schema_allow_any_json(structured: Structured) -> None:
    for schema in ("true", "{}"):
        assert {b"{", b"[", b'"', b"1", b"t", b"n"} <= allowed(structured.mask(Constraint(json_schema=schema)))


@pytest.mark.parametrize(
    "schema",
    [
        *({"type": "string", "format": form} for form in ("path", "binary")),
        {"type": "array", "uniqueItems": False, "minItems": 2.0},
        {"type": "object", "propertyNames": {"pattern": "^a"}, "unevaluatedProperties": False},
        {"type": "object", "dependentRequired": {"a": ["b"]}},
    ],
)
def test_schemas_are_prepared_whatever_way_they_come(structured: Structured, schema: dict[str, Any]) -> None:
    assert allowed(structured.mask(Constraint(json_schema=json.dumps(schema))))


def test_an_object_gets_the_properties_that_it_lists(structured: Structured) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    for seed in range(20):
        assert json.loads(draw(structured.mask(Constraint(json_schema=json.dumps(schema))), seed)).keys() == {"a"}


def test_a_token_that_the_grammar_forbids_fails_the_request_not_the_process(structured: Structured) -> None:
    mask = structured.mask(Constraint(regex="ab"))
    with pytest.raises(SchemaError, match="'x'"):
        mask.accept(ord("x"))


@pytest.mark.slow
def test_an_expensive_grammar_costs_the_engine_thread_little(structured: Structured) -> None:
    constraint = Constraint(regex="(a{1000}){1000}")
    began = time.process_time()
    mask = structured.mask(constraint)
    compiling_s, began = time.process_time() - began, time.thread_time()
    allowed(mask)
    assert time.thread_time() - began < compiling_s / 5


def long_chains() -> Iterator[Constraint]:
    """Each link of which llguidance follows by recursion."""
    links: dict[str, Callable[[str], dict[str, Any]]] = {
        "plain": lambda next_: {"$ref": next_},
        "anyOf": lambda next_: {"anyOf": [{"$ref": next_}]},
        "items": lambda next_: {"type": "array", "items": {"$ref": next_}},
        "properties": lambda next_: {"type": "object", "properties": {"x": {"$ref": next_}}, "required": ["x"]},
    }
    for link in links.values():
        chain = {f"a{i}": link(f"#/$defs/a{i + 1}") for i in range(6000)}
        yield Constraint(json_schema=json.dumps({"$ref": "#/$defs/a0", "$defs": {**chain, "a6000": {"const": 1}}}))
    rules = "".join(f"r{i}: r{i + 1}\n" for i in range(MAX_RULES - 2))
    yield Constraint(grammar=f'start: r0\n{rules}r{MAX_RULES - 2}: "x"')
    rules = "".join(f"r{i} ::= r{i + 1}\n" for i in range(MAX_GBNF_RULES - 2))
    yield Constraint(grammar=f'root ::= r0\n{rules}r{MAX_GBNF_RULES - 2} ::= "x"')


CHAINS = ["plain", "anyOf", "items", "properties", "lark", "gbnf"]


@pytest.mark.parametrize("constraint", list(long_chains()), ids=CHAINS)
def test_long_chains_of_rules_are_followed_to_their_end(structured: Structured, constraint: Constraint) -> None:
    """The stack of an ordinary thread is enough for a thousand."""
    assert allowed(structured.mask(constraint))


def test_what_is_unusable_is_remembered_and_what_had_no_memory_is_tried_again() -> None:
    structured = Structured(BACKEND)
    for _ in range(2):
        with pytest.raises(SchemaError):
            structured.mask(Constraint(regex="(["))
    assert structured.compiling(Constraint(regex="([")) is None
    structured.stack_bytes = 1 << 60
    with pytest.raises(OutOfMemoryError):
        structured.mask(Constraint(regex="a"))
    structured.stack_bytes = STACK_BYTES
    assert allowed(structured.mask(Constraint(regex="a"))) == {b"a"}


def test_threads_share_the_tokenizer_and_what_was_compiled() -> None:
    structured = Structured(BACKEND)
    texts: list[str] = []
    constraints = [Constraint(choices=(f"answer {index}",)) for index in range(COMPILED_KEPT + 8)]

    def work() -> None:
        texts.extend(draw(structured.mask(constraint), 1) for constraint in constraints)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts) == sorted(4 * [f"answer {index}" for index in range(COMPILED_KEPT + 8)])


TOOLS = {
    name: arguments({"type": "object", "properties": properties}, strict=False)
    for name, properties in {
        "now": {},
        "weather": {"city": {"type": "string"}},
        "note": {"tags": {"type": "object"}, "counts": {"type": "object", "additionalProperties": {"type": "integer"}}},
    }.items()
}
CALLS = [
    ("now", {}),
    ("weather", {"city": "Paris"}),
    ("note", {"tags": {}, "counts": {"a-b": 1}}),
    ("note", {"tags": {"a": "b", "c": 2}, "counts": {}}),
]


@pytest.mark.parametrize(("name", "given"), CALLS)
@pytest.mark.parametrize("syntax", [syntax for _, syntax in FAMILIES], ids=lambda syntax: syntax.name)
def test_an_answer_ends_with_its_only_call(
    structured: Structured, syntax: Syntax, name: str, given: dict[str, Any]
) -> None:
    """It may be written, and behind it nothing is left to write, or a weak model would go on to its last token."""
    mask = structured.mask(Constraint(grammar=calls(syntax, TOOLS, parallel=False)))
    text = write_calls(syntax, [(name, given)]).replace("'", '"')  # Python knows both, the grammar one
    for token in tokens_of(text):
        assert not mask.is_complete
        mask.accept(token)
    assert mask.is_complete
