"""The sandbox: what published templates need works, and no template costs more than it may."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from barrel_inference.chat.templates.budget import Limits
from barrel_inference.chat.templates.template import Template
from barrel_inference.errors import TemplateError


def render(source: str, **values: object) -> str:
    return Template(source, now=lambda: datetime(2026, 3, 4)).text([{"role": "user", "content": "hi"}], **values)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{{ [1, 2] | map('string') | tojson }}", '["1", "2"]'),
        ("{{ '{\"a\": 1}' | from_json }}", "{'a': 1}"),
        ("{{ '<b>' | safe ~ '<i>' }}", "<b><i>"),
        ("{{ '<b>' | e ~ '<i>' }}", "&lt;b&gt;<i>"),
        ("{% set l = [] %}{% set _ = l.append(1) %}{{ l }}", "[1]"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{{ strftime_now('%Y-%m-%d') }}", "2026-03-04"),
        ("{{ '{\"a\": {\"b\": %s}}' % 1 }}{{ '{{{}}}'.format(2) }}", '{"a": {"b": 1}}{2}'),
        ("{{ '%05.1f' % 2.5 }}{{ '{:>4}'.format('a') }}", "002.5   a"),
        ("{{ 'a\nb' | indent(2) }}{{ 'aXa' | replace('X', '-') }}", "a\n  ba-a"),
        ("{% for m in messages %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% endfor %}", "1True1"),
    ],
)
def test_what_templates_use(source: str, expected: str) -> None:
    assert render(source) == expected


def test_blocks_leave_no_lines() -> None:
    assert render("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"


def test_a_template_may_change_what_it_gets_and_nobody_notices() -> None:
    tools = [{"function": {"name": "f"}}]
    source = "{% set _ = tools.append(1) %}{% set _ = tools[0].function.pop('name') %}{{ tools | length }}"
    template = Template(source)
    assert template.text([{"role": "user", "content": "x"}], tools=tools) == "2"
    assert json.dumps(tools) == '[{"function": {"name": "f"}}]'


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no such role') }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ messages[0].nothing.more }}",
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_failures_are_template_errors(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


def test_the_words_of_raise_exception_reach_the_caller() -> None:
    with pytest.raises(TemplateError, match=r"^no such role$"):
        render("{{ raise_exception('no such role') }}")


@pytest.mark.parametrize(
    "bomb",
    [
        "{{ 'a' * 10**9 }}",
        "{{ [1] * 10**9 }}",
        "{{ 2 ** 999999 }}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ 'a'.ljust(10**9) }}",
        "{{ ('a' * 9999) | replace('a', 'b' * 9999) }}",
        "{{ ('a' * 9999).replace('a', 'b' * 9999) }}",
        "{{ [1] | tojson(indent=10**9) }}",
        "{{ range(10**9) | list }}",
        "{% for i in range(99999) %}{{ 'a' * 999 }}{% endfor %}",
    ],
)
def test_size_is_limited(bomb: str) -> None:
    with pytest.raises(TemplateError):
        render(bomb)


TWICE = "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
NESTED = "{% set ns = namespace(x=(1,)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}"
SMALL = Limits(chars=1 << 17, made_chars=1 << 21)


def keep(made: str, before: str = "") -> str:
    """Holds on to what each turn of a loop makes."""
    return f"{before}{{% set l = [] %}}{{% for i in range(99999) %}}{{% set _ = l.append({made}) %}}{{% endfor %}}"


@pytest.mark.parametrize(
    "bomb",
    [
        "{% set ns = namespace(x=3) %}{% for i in range(40) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{{ 5.5 | round(99999999) }}",
        "{{ ('f' * 99999) | int(0, 16) // 3 }}",
        "{{ ('x' * 99999).join(range(9999) | map('string') | list) }}",
        "{{ range(9999) | join('a' * 99999) }}",
        "{{ ([{'a': 'x' * 99999}] * 9999) | map(attribute='a') | join }}",
        "{{ ('a' * 9999).translate({97: 'b' * 9999}) }}",
        "{{ 'a'.encode() * 999999999 }}",
        "{{ {}.fromkeys(range(9999)) }}",
        "{{ (1).to_bytes(999999999) }}",
        "{% set l = [1] %}{% for i in range(60) %}{% set _ = l.extend(l) %}{% endfor %}",
        "{% set l = [1] %}{% set _ = l.extend(l | select) %}",
        "{% set l = [1] %}{% set _ = l.append(l) %}{{ l == l }}{{ l | tojson }}",
        TWICE + "{{ ns.x }}",
        TWICE + "{{ ns }}",
        TWICE + "{{ ns.x ~ '' }}",
        TWICE + "{{ ns.x | string }}",
        TWICE + "{{ ns.x | tojson }}",
        TWICE + "{{ ns.x | tojson(indent=2) }}",
        TWICE + "{{ '%s' % ns.x }}",
        TWICE + "{{ '{}'.format(ns.x) }}",
        TWICE + "{{ [ns.x] | sort }}",
        TWICE + TWICE.replace("ns.x", "ns.y") + "{{ ns.x == ns.y }}",
        TWICE + TWICE.replace("ns.x", "ns.y") + "{{ ns.x in [ns.y] }}",
        TWICE + TWICE.replace("ns.x", "ns.y") + "{{ ns.x is eq ns.y }}",
        TWICE + TWICE.replace("ns.x", "ns.y") + "{{ [ns.x].count(ns.y) }}",
        NESTED + "{{ {ns.x: 1} }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ ('{0}' * 9999).format('a' * 9999) }}",
        "{{ ('%(a)s' * 9999) % {'a': 'b' * 9999} }}",
        "{{ ('%9999d' * 9999) % (1,) }}",
        "{{ ('{a}' * 9999).format_map({'a': 'b' * 9999}) }}",
        "{{ ([['a'] * 999] * 999) | sum(start=[]) }}",
        "{{ ('a ' * 499999).split() }}",
        "{% set x %}{% for i in range(9999) %}{% for j in range(999) %}much{% endfor %}{% endfor %}{% endset %}",
        "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}"
        + "{% call f() %}" * 40
        + "much"
        + "{% endcall %}" * 40,
        "{% autoescape true %}{% set x %}a{% endset %}{{ x.ljust(999999999) }}{% endautoescape %}",
        "{{ strftime_now('%c' * 99999) }}",
        keep("'a' * 99999 ~ i"),
        keep("[1] * 9999"),
        keep("s.upper()", "{% set s = 'a' * 99999 %}"),
        keep("s | upper", "{% set s = 'a' * 99999 %}"),
        keep("s[1:]", "{% set s = 'a' * 99999 %}"),
        keep("s[1:]", "{% set s = [1] * 9999 %}"),
        keep("range(9999) | list"),
        keep("{'a': i}"),
    ],
)
def test_what_makes_much_out_of_little_is_limited(bomb: str) -> None:
    with pytest.raises(TemplateError):
        Template(bomb, limits=SMALL).text([{"role": "user", "content": "x"}])


def test_what_is_computed_when_a_template_is_read_is_limited() -> None:
    with pytest.raises(TemplateError, match="precision"):
        render("{{ 5 | round(99999999) }}")
    for deep in ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{% if 1 %}" * 3000 + "{% endif %}" * 3000):
        with pytest.raises(TemplateError, match="does not compile"):
            Template(deep)
    with pytest.raises(TemplateError, match="longer than"):
        Template(" " * (2 << 20))


class Ticking:
    """A clock that moves whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


@pytest.mark.parametrize(
    "endless",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{% endmacro %}{% for i in range(99999) %}{% set x = f() %}{% endfor %}",
        "{% set l = [1] %}{% for i in l %}{% set _ = l.append(1) %}{% endfor %}",
    ],
)
def test_time_is_limited(endless: str) -> None:
    template = Template(endless, limits=Limits(seconds=0.05), clock=Ticking())
    with pytest.raises(TemplateError, match="ran longer than"):
        template.text([{"role": "user", "content": "x"}])


def test_a_template_that_does_not_compile() -> None:
    with pytest.raises(TemplateError, match="does not compile"):
        Template("{% for")
