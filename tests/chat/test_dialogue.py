"""From a request to a prompt, a constraint and a parser."""

from __future__ import annotations

import json
from typing import Any

import pytest

from barrel_inference.chat.dialogue import Dialogue, Prompt, Turn
from barrel_inference.chat.templates.template import Template
from barrel_inference.errors import InvalidRequestError, SchemaError, UnsupportedError
from barrel_inference.types import Constraint
from tests.chat.pieces import DEFINITIONS, fed
from tests.chat.tools.test_families import matcher

THINKER = """\
{%- if tools %}<|tools|>{{ tools | tojson }}<end>{% endif -%}
{%- for m in messages -%}
{{ '<|' ~ m.role ~ '|>' }}
{%- if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif -%}
{{ m.content }}
{%- for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}{{ '<end>' }}
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not enable_thinking -%}
<think></think>{% endif %}{% endif -%}"""

CHANNELS = """\
{%- for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor -%}
{%- if add_generation_prompt %}<|start|>assistant{% endif -%}
{#- <|channel|>final #}"""

TALK = [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}]
SCHEMA = Constraint(json_schema='{"type": "integer"}')


def thinker() -> Dialogue:
    return Dialogue(Template(THINKER))


def plain() -> Dialogue:
    return Dialogue(Template("chatml"))


def ask(dialogue: Dialogue, **turn: Any) -> Prompt:
    return dialogue.prompt(Turn(**{"messages": TALK, **turn}))


def test_the_profile_of_a_thinking_template() -> None:
    profile = thinker().profile
    assert profile.shape.thinking is not None and profile.shape.thinking.open == "<think>"
    assert profile.shape.syntax is not None and profile.shape.syntax.name == "hermes"
    assert profile.form.native_calls and profile.form.native_definitions
    assert thinker().can_think and thinker().has_native_tools
    assert not plain().can_think and not plain().has_native_tools


def test_thinking_is_switched_off() -> None:
    assert ask(thinker(), think=False).text.endswith("<|assistant|><think></think>")
    assert ask(thinker(), think=None).text.endswith("<|assistant|>")


def test_a_template_without_a_switch_gets_an_empty_thought() -> None:
    source = THINKER.replace("enable_thinking is defined and not enable_thinking", "false")
    assert ask(Dialogue(Template(source)), think=False).text.endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "self"])
def test_keywords_that_stand_for_parts_of_the_request_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        plain().prompt(Turn(TALK, template={name: []}))


def test_documents_are_refused_where_the_template_has_no_place_for_them() -> None:
    with pytest.raises(UnsupportedError, match="documents"):
        plain().prompt(Turn(TALK, documents=[{"text": "d"}]))
    able = Dialogue(Template("{{ documents }}{% for m in messages %}{{ m.content }}{% endfor %}"))
    assert "'d'" in able.prompt(Turn(TALK, documents=[{"text": "d"}])).text


def test_thinking_is_refused_where_there_is_none() -> None:
    with pytest.raises(UnsupportedError):
        ask(plain(), think=True)


def test_a_constraint_begins_after_the_thinking() -> None:
    prompt = ask(thinker(), constraint=SCHEMA)
    assert prompt.text.endswith("<|assistant|><think>\n") and prompt.thinking
    assert prompt.constraint is not None and prompt.constraint.start_after == "</think>"
    assert prompt.constraint.json_schema == SCHEMA.json_schema
    assert fed(prompt.parser(), "hm</think>7") == [("thought", "hm"), ("text", "7")]


def test_without_thinking_a_constraint_begins_at_once() -> None:
    for prompt in (ask(thinker(), constraint=SCHEMA, think=False), ask(plain(), constraint=SCHEMA)):
        assert prompt.constraint == SCHEMA and not prompt.thinking


@pytest.mark.parametrize("dialogue", [thinker(), plain()], ids=["native", "instructed"])
def test_a_required_call_has_a_grammar(dialogue: Dialogue) -> None:
    prompt = ask(dialogue, tools=DEFINITIONS, choice="required", think=False if dialogue.can_think else None)
    assert prompt.constraint is not None and prompt.constraint.grammar is not None
    assert "get_weather" in prompt.constraint.grammar and "get_time" in prompt.constraint.grammar
    assert "about get_weather" in prompt.text
    call = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    assert fed(prompt.parser(), call) == [("call", ("get_time", {}))]


def test_a_named_tool_is_the_only_one_in_the_grammar() -> None:
    prompt = ask(plain(), tools=DEFINITIONS, choice="named:get_time")
    assert prompt.constraint is not None and prompt.constraint.grammar is not None
    assert "get_weather" not in prompt.constraint.grammar
    assert "get_weather" in prompt.text


def test_choices_that_make_no_sense() -> None:
    with pytest.raises(InvalidRequestError, match="none of the tools"):
        ask(plain(), tools=DEFINITIONS, choice="named:other")
    with pytest.raises(InvalidRequestError, match="requires a tool"):
        ask(plain(), choice="required")


def test_with_auto_a_call_that_has_begun_is_completed_validly() -> None:
    prompt = ask(plain(), tools=DEFINITIONS)
    assert prompt.constraint is not None
    assert prompt.constraint.start_after == "<tool_call>"
    assert "<tool_call>" not in str(prompt.constraint.grammar).splitlines()[0]


def test_with_none_nothing_is_taken_for_a_call() -> None:
    prompt = ask(plain(), tools=DEFINITIONS, choice="none")
    call = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    assert prompt.constraint is None
    assert fed(prompt.parser(), call) == [("text", call)]


def test_a_form_and_tools_are_alternatives() -> None:
    prompt = ask(plain(), tools=DEFINITIONS, constraint=SCHEMA)
    assert prompt.constraint is not None and prompt.constraint.grammar is not None
    assert prompt.constraint.grammar.startswith("start: tool_calls | answer\n")


@pytest.mark.parametrize(
    ("template", "turn"), [("chatml", {"tools": DEFINITIONS}), (CHANNELS, {}), (CHANNELS, {"tools": DEFINITIONS})]
)
def test_where_a_grammar_of_ones_own_has_no_place_it_is_refused(template: str, turn: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"tools .*, nor .*gpt-oss") as caught:
        ask(Dialogue(Template(template)), constraint=Constraint(grammar="start: x"), **turn)
    assert caught.value.details["option"] == "grammar"


@pytest.mark.parametrize(
    ("form", "fits", "other"),
    [
        (Constraint(regex=r"a/b\/[0-9]"), "a/b/7", "a/b"),
        (Constraint(choices=("a/b", "two\nlines", 'qu"ote', "a b-c.d")), "two\nlines", "aXb-c.d"),
        (Constraint(choices=tuple(f"choice {n}" for n in range(3000))), "choice 2999", "choice x"),
    ],
)
def test_forms_beside_tools_are_what_they_are_alone(form: Constraint, fits: str, other: str) -> None:
    prompt = ask(plain(), tools=DEFINITIONS, constraint=form)
    assert prompt.constraint is not None and prompt.constraint.grammar is not None
    call = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    for text, allowed in ((fits, True), (call, True), (other, False)):
        made = matcher(prompt.constraint.grammar)
        taken = made.try_consume_tokens(list(text.encode()))
        assert (taken == len(text.encode()) and made.is_accepting()) == allowed


def test_strict_tools_name_what_cannot_be_enforced() -> None:
    function = {"name": "f", "strict": True, "parameters": {"properties": {"a": {"uniqueItems": True}}}}
    with pytest.raises(SchemaError, match="uniqueItems"):
        ask(plain(), tools=[{"type": "function", "function": function}])


def test_markers_can_be_given() -> None:
    dialogue = Dialogue(Template("chatml"), tool_call_markers=("<call>", "</call>"), thinking_markers=("<t>", "</t>"))
    prompt = ask(dialogue, tools=DEFINITIONS)
    text = '<t>hm</t><call>{"name": "get_time", "arguments": {}}</call>'
    assert fed(prompt.parser(), text) == [("thought", "hm"), ("call", ("get_time", {}))]


def test_the_next_prompt_repeats_what_the_model_wrote() -> None:
    dialogue = thinker()
    prompt = ask(dialogue, tools=DEFINITIONS)
    written = '<think>hm</think>\n\n<tool_call>{"arguments":{},"name":"get_time"}</tool_call>'
    call = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    dialogue.remember(prompt, answer, written)
    result = {"role": "tool", "content": "noon", "tool_call_id": "call_1"}
    following = ask(dialogue, messages=[*TALK, answer, result], tools=DEFINITIONS)
    assert following.text == f"{prompt.text}{written}<end><|tool|>noon<end><|assistant|>"
    assert all(following.text[:end].endswith("<end>") for end in following.boundaries)


def test_a_changed_history_is_rendered_anew() -> None:
    dialogue = plain()
    prompt = ask(dialogue)
    dialogue.remember(prompt, {"role": "assistant", "content": "Hello"}, "  Hello")
    changed = [*TALK[:1], {"role": "user", "content": "Changed"}, {"role": "assistant", "content": "Hello"}, TALK[1]]
    assert "  Hello" not in ask(dialogue, messages=changed).text


def test_a_continued_answer() -> None:
    messages = [*TALK, {"role": "assistant", "content": "I am"}]
    prompt = ask(plain(), messages=messages, continue_final=True)
    assert prompt.text.endswith("<|im_start|>assistant\nI am")


def test_tools_of_all_kinds_are_described() -> None:
    bare = [{"type": "function", "function": {"name": "f"}}]
    assert json.dumps("f") in ask(plain(), tools=bare).text
    assert '"name": "f"' in ask(thinker(), tools=bare).text


def test_a_prompt_may_end_with_the_beginning_of_a_call() -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}>>>{% endif %}{# >>>all #}"
    )
    prompt = ask(Dialogue(Template(source)), tools=DEFINITIONS)
    assert fed(prompt.parser(), "get_time\n{}") == [("call", ("get_time", {}))]
    assert fed(prompt.parser(), "all\nHello") == [("text", "Hello")]


@pytest.mark.parametrize("said", ["hi", "<think>", "what does </think> mean?", "t"])
def test_what_the_user_says_about_thoughts_changes_nothing(said: str) -> None:
    source = THINKER.replace("<think></think>{% endif", "<think></think>{% else %}<think>{% endif")
    dialogue = Dialogue(Template(source))
    messages = [{"role": "user", "content": said}]
    assert dialogue.prompt(Turn(messages)).thinking
    off = dialogue.prompt(Turn(messages, think=False))
    assert not off.thinking and off.text.endswith("<think></think>")
