"""Prompts: boundaries, continued messages, keywords, built-in templates."""

from __future__ import annotations

import pytest

from barrel_inference.chat.templates.fallbacks import TEMPLATES, pick
from barrel_inference.chat.templates.template import Template
from barrel_inference.errors import InvalidRequestError, TemplateError

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Bye"},
]


def test_boundaries_are_message_ends() -> None:
    rendered = Template("chatml").render(TALK)
    parts = [rendered.text[:end] for end in rendered.boundaries]
    assert parts == [Template("chatml").text(TALK[:count]) for count in (1, 2, 3, 4)]


def test_of_a_long_conversation_the_first_and_the_last_boundaries_are_given() -> None:
    long = [TALK[0], *(TALK[1:3] * 20)]
    rendered = Template("chatml").render(long)
    ends = [len(Template("chatml").text(long[:count])) for count in (1, len(long) - 1, len(long))]
    assert rendered.boundaries == tuple(ends)
    assert rendered.opening == ends[-1]


def test_a_template_that_rewrites_its_head_has_no_boundary_there() -> None:
    source = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    assert Template(source).render(TALK).boundaries == (len(Template(source).text(TALK)),)


@pytest.mark.parametrize("content", ["The answer is", "ends with space ", "a\n\n", "<|im_end|>"])
def test_a_continued_message_ends_the_prompt_as_it_is(content: str) -> None:
    messages = [*TALK, {"role": "assistant", "content": content}]
    text = Template("chatml").render(messages, add_generation_prompt=False, continue_final_message=True).text
    assert text == Template("chatml").render(TALK).text + content


def test_a_continued_message_keeps_its_end_even_where_the_template_trims() -> None:
    source = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
    text = Template(source).render([{"role": "assistant", "content": " a "}], continue_final_message=True).text
    assert text == "[a "


def test_what_cannot_be_continued() -> None:
    with pytest.raises(InvalidRequestError):
        Template("chatml").render([{"role": "assistant", "content": [{}]}], continue_final_message=True)
    with pytest.raises(TemplateError):
        Template("nothing").render([{"role": "assistant", "content": "x"}], continue_final_message=True)
    with pytest.raises(InvalidRequestError):
        Template("chatml").render([])


def test_keywords_reach_the_template() -> None:
    source = "{{ enable_thinking }}{{ documents }}{{ tools is none }}{{ bos_token }}{{ eos_token }}"
    template = Template(source, bos_token="<s>", eos_token="</s>")
    assert template.render(TALK, enable_thinking=True).text == "TrueNoneTrue<s></s>"
    assert "enable_thinking" in template.variables


def test_a_built_in_template_is_visible_by_its_name() -> None:
    assert Template("chatml").name == "chatml"
    assert Template("{{ 1 }}").name == "model"


@pytest.mark.parametrize("name", TEMPLATES)
def test_built_in_templates_say_everything_and_grow_at_the_end(name: str) -> None:
    template = Template(name, bos_token="<s>", eos_token="</s>")
    prompts = [template.render(TALK[:count]).text for count in (2, 4)]
    assert all(message["content"] in prompts[1] for message in TALK)
    assert prompts[1].startswith(prompts[0] if name != "llama2" else prompts[0].rstrip())
    answered = template.text(TALK[:3])
    assert answered.startswith(prompts[0])


def test_which_built_in_template_a_model_gets() -> None:
    assert pick("{{ own }}", frozenset()) == "{{ own }}"
    assert pick(None, frozenset({"<|im_end|>"})) == "chatml"
    assert pick("", frozenset({"<|eot_id|>"})) == "llama3"
    assert pick(None, frozenset({"<end_of_turn>"})) == "gemma"
    assert pick(None, frozenset({"</s>"})) == "plain"
