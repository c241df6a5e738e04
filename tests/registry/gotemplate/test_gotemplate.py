"""Go templates as registry models use them, checked against what Go prints."""

from __future__ import annotations

import contextlib
import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.errors import TemplateError
from barrel_inference.registry.gotemplate import Template, check, is_go
from barrel_inference.registry.gotemplate.evaluate import Evaluator
from barrel_inference.registry.gotemplate.parse import parse

TODAY = datetime.date(2026, 3, 1)

CHATML = """{{- if .Messages }}
{{- if or .System .Tools }}<|im_start|>system
{{- if .System }}
{{ .System }}
{{- end }}
{{- if .Tools }}
<tools>
{{- range .Tools }}
{"type": "function", "function": {{ .Function }}}
{{- end }}
</tools>
{{- end }}<|im_end|>
{{ end }}
{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 -}}
{{- if eq .Role "user" }}<|im_start|>user
{{ .Content }}<|im_end|>
{{ else if eq .Role "assistant" }}<|im_start|>assistant
{{ if .Content }}{{ .Content }}
{{- else if .ToolCalls }}<tool_call>
{{ range .ToolCalls }}{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}
{{ end }}</tool_call>
{{- end }}{{ if not $last }}<|im_end|>
{{ end }}
{{- else if eq .Role "tool" }}<|im_start|>user
<tool_response>
{{ .Content }}
</tool_response><|im_end|>
{{ end }}
{{- if and (ne .Role "assistant") $last }}<|im_start|>assistant
{{ end }}
{{- end }}
{{- else }}
{{- if .System }}<|im_start|>system
{{ .System }}<|im_end|>
{{ end }}{{ if .Prompt }}<|im_start|>user
{{ .Prompt }}<|im_end|>
{{ end }}<|im_start|>assistant
{{ end }}{{ .Response }}{{ if .Response }}<|im_end|>{{ end }}"""
LEGACY = "{{ if .System }}<<{{ .System }}>>{{ end }}[{{ .Prompt }}]({{ .Response }})"
TOOL = {"type": "function", "function": {"name": "f", "description": "x<y", "parameters": {"type": "object"}}}


def run(source: str, **data: Any) -> str:
    return Evaluator(parse(source), TODAY).run(data)


@pytest.mark.parametrize(
    ("source", "data", "text"),
    [
        ("a{{ .X }}b", {"X": "-"}, "a-b"),
        ("a \n {{- .X -}} \n b", {"X": "-"}, "a-b"),
        ("{{/* gone */}}x{{- /* too */ -}} y", {}, "xy"),
        ("{{ .X.Y.Z }}", {"X": {"Y": {"Z": 5}}}, "5"),
        ("{{ .Nope }}", {}, "<no value>"),
        ("{{ if .X }}y{{ else }}n{{ end }}", {"X": []}, "n"),
        ("{{ if eq .X 1 }}1{{ else if eq .X 2 }}2{{ else }}3{{ end }}", {"X": 2}, "2"),
        ("{{ range .X }}<{{ . }}>{{ else }}none{{ end }}", {"X": ["a", "b"]}, "<a><b>"),
        ("{{ range .X }}x{{ else }}none{{ end }}", {"X": []}, "none"),
        ("{{ range $i, $x := .X }}{{ $i }}{{ $x }}{{ end }}", {"X": ["a", "b"]}, "0a1b"),
        ("{{ range $k, $v := .X }}{{ $k }}={{ $v }};{{ end }}", {"X": {"a": 1, "b": True}}, "a=1;b=true;"),
        ("{{ range .X }}{{ if eq . 2 }}{{ break }}{{ end }}{{ . }}{{ end }}", {"X": [1, 2, 3]}, "1"),
        ("{{ range .X }}{{ if eq . 2 }}{{ continue }}{{ end }}{{ . }}{{ end }}", {"X": [1, 2, 3]}, "13"),
        ("{{ with .X }}{{ .Y }}{{ else }}no{{ end }}", {"X": {"Y": 1}}, "1"),
        ("{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ end }}{{ $x }}", {}, "2"),
        ("{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ end }}{{ $x }}", {}, "1"),
        ("{{ range .X }}{{ $.Y }}{{ . }}{{ end }}", {"X": [1, 2], "Y": "-"}, "-1-2"),
        ("{{ len .X }} {{ index .X 1 }} {{ slice .X 1 }}", {"X": ["a", "b", "c"]}, "3 b [b c]"),
        ("{{ (index .X 0).Y }}", {"X": [{"Y": "z"}]}, "z"),
        ("{{ eq .X 1 2 3 }} {{ ne .X 1 }} {{ lt 1 2 }} {{ ge 1 2 }}", {"X": 3}, "true true true false"),
        ('{{ and .X "b" }} {{ or .Y "c" }} {{ not .Y }}', {"X": "a", "Y": ""}, "b c true"),
        ("{{ and .Y .X.Missing.Deep }}", {"Y": "", "X": "text"}, ""),
        ('{{ printf "%s-%d-%5.2f-%q-%v-%%" "a" 7 1.5 "q" true }}', {}, 'a-7- 1.50-"q"-true-%'),
        ("{{ json .X }} {{ .X }}", {"X": {"a": [1, "<&>"]}}, '{"a":[1,"\\u003c\\u0026\\u003e"]} ' * 2),
        ('{{ "a\\tb\\u00e4" }}{{ `raw\\n` }}', {}, "a\tbäraw\\n"),
        ('{{ .X | len | printf "%d!" }}', {"X": "abc"}, "3!"),
        ('{{ define "t" }}[{{ . }}]{{ end }}{{ template "t" .X }}', {"X": 1}, "[1]"),
        ('{{ block "t" .X }}({{ . }}){{ end }}', {"X": 1}, "(1)"),
        ("{{ currentDate }} {{ yesterdayDate }}", {}, "2026-03-01 2026-02-28"),
        ("{{ range $i := 3 }}{{ $i }}{{ end }}", {}, "012"),
        ("{{ .X }}", {"X": [1, 2]}, "[1 2]"),
        ("{{ .X }} {{ .Y }}", {"X": 1.5, "Y": 2.0}, "1.5 2"),
        ("{{ toTypeScriptType .X }}", {"X": {"type": ["string", "null"]}}, "string | null"),
        ("{{ toTypeScriptType .X }}", {"X": {"type": "array", "items": {"type": "integer"}}}, "number[]"),
    ],
)
def test_evaluation(source: str, data: dict[str, Any], text: str) -> None:
    assert run(source, **data).rstrip() == text.rstrip()


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("{{ if .X }}", "an {{end}} is missing"),
        ("{{ end }}", "unexpected {{end}}"),
        ("x\ny {{ .X ! }}", "line 2: unexpected"),
        ("{{ nope .X }}", "function 'nope' is not defined"),
        ("{{ $x }}", "undefined variable"),
        ('{{ template "x" }}', "not defined"),
        ('{{ index .X "a" 5 }}', "index"),
        ("{{ slice .L 5 }}", "out of range"),
        ("{{ .L.Field }}", "no field Field"),
        ("{{ lt 1 .S }}", "incompatible types"),
        ('{{ printf "%2000d" 1 }}', "width over"),
        ("{{ (.X }}", "unexpected"),
        ("{{ 5 5 }}", "only functions"),
        ("{{ break }}", "outside a range"),
        ("{{ not 1 2 3 }}", "wrong arguments"),
        ("{{ len 5 }}", "len of int"),
        ('{{ define "a" }}{{ template "a" }}{{ end }}{{ template "a" }}', "deeper than"),
        ("{{ range 1000 }}{{ range 1000 }}{{ end }}{{ end }}", "steps"),
        ("{{ range 100000000 }}{{ end }}", "cannot range"),
        ("{{ if 1 }}" * 100 + "{{ end }}" * 100, "nested deeper"),
        ("{{ if 0 }}" + "{{ else if 0 }}" * 2000 + "{{ end }}", "nested too deeply"),
        (
            '{{ define "a" }}' + "{{ if 1 }}" * 60 + '{{ template "a" }}' + "{{ end }}" * 61 + '{{ template "a" }}',
            "nested too deeply",
        ),
        *((f"{{{{ {number} }}}}", "too large") for number in ("1e999", "9" * 5000, "0x" + "f" * 40, str(1 << 63))),
        ('{{ $x := "aaaa" }}{{ range 60 }}{{ $x = print $x $x }}{{ end }}', "steps"),
        ('{{ $x := "aaaa" }}{{ range 60 }}{{ $x = printf "%s%v" $x $x }}{{ end }}', "steps"),
        ('{{ $x := "\\"" }}{{ range 60 }}{{ $x = json $x }}{{ end }}', "steps"),
        ('{{ printf "' + "%900d" * 2 + '" 1 2 }}', "width over"),
        ("{{ " + "(" * 100 + "1" + ")" * 100 + " }}", "nested deeper"),
    ],
)
def test_errors_and_limits(source: str, cause: str) -> None:
    with pytest.raises(TemplateError) as caught:
        run(source, L=[1], S="s", X={"a": 1})
    assert cause in caught.value.message


def test_output_is_limited() -> None:
    with pytest.raises(TemplateError, match="writes more than"):
        run("{{ range 1000 }}{{ $.X }}{{ end }}", X="x" * (1 << 20))


def test_what_json_calls_a_number_is_printed_or_refused() -> None:
    values = {"a": float("inf"), "b": float("-inf"), "c": float("nan"), "d": 1e300, "e": 10**400}
    assert run("{{ .X.a }} {{ .X.b }} {{ .X.c }} {{ .X.d }}", X=values) == "+Inf -Inf NaN 1e+300"
    assert run("{{ .X.e }}", X=values) == str(10**400)
    with pytest.raises(TemplateError, match="wrong arguments"):
        run('{{ printf "%f" .X.e }}', X=values)


def test_halves_of_surrogate_pairs_are_no_text() -> None:
    assert run(r'{{ "\ud800" }}{{ printf "%c" 0xdfff }}') == "\ufffd\ufffd"


def test_texts_are_cut_by_bytes_as_they_are_counted() -> None:
    assert run("{{ slice .X 0 (len .X) }}{{ slice .X 0 1 }}", X="éa") == "éa\ufffd"


def test_a_template_of_many_lines_is_read_once() -> None:
    with pytest.raises(TemplateError, match="line 5001"):
        Template("{{ 1 }}\n" * 5000 + "{{ ? }}")


def test_attributes_of_python_are_out_of_reach() -> None:
    for source in ("{{ .__class__ }}", "{{ .X.__class__ }}", "{{ .X.upper }}", "{{ call .X }}"):
        with contextlib.suppress(TemplateError):
            assert run(source, X="s") == "<no value>"


@given(st.text(alphabet=st.sampled_from('{}-. $x|()"`:=,if end range else with .X\n/*\\')))
def test_any_text_is_rendered_or_refused(source: str) -> None:
    try:
        run(source, X=["a", {"Y": 1}])
    except TemplateError as error:
        assert error.message


def test_a_conversation_with_tools() -> None:
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1, "a": 2}}}],
        },
        {"role": "tool", "content": "42"},
    ]
    assert Template(CHATML).render_chat(messages, tools=[TOOL], today=TODAY) == (
        '<|im_start|>system\nS\n<tools>\n{"type": "function", "function": {"name":"f","description":"x\\u003cy",'
        '"parameters":{"type":"object","properties":{}}}}\n</tools><|im_end|>\n<|im_start|>user\nhi<|im_end|>\n'
        '<|im_start|>assistant\n<tool_call>\n{"name": "f", "arguments": {"b":1,"a":2}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_templates_without_messages_are_run_once_a_turn() -> None:
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "3"},
    ]
    assert Template(LEGACY).render_chat(messages, today=TODAY) == "<<S>>[1](2)[3]("


def test_consecutive_messages_of_one_role_are_joined() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert "user\na\n\nb<|im_end|>" in Template(CHATML).render_chat(messages, today=TODAY)


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system", "tool"]), st.text()), min_size=1, max_size=6))
def test_a_later_system_message_does_not_change_the_head(turns: list[tuple[str, str]]) -> None:
    head = [{"role": "system", "content": "S"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
    before = Template(CHATML).render_chat(head[:2], today=TODAY)
    messages = [*head, {"role": "system", "content": "later"}, *({"role": r, "content": c} for r, c in turns)]
    assert Template(CHATML).render_chat(messages, today=TODAY).startswith(before)


def test_fill_in_the_middle() -> None:
    template = Template("{{ if .Suffix }}<P>{{ .Prompt }}<S>{{ .Suffix }}<M>{{ else }}{{ .Prompt }}{{ end }}")
    assert template.render_prompt("a", suffix="b", today=TODAY) == "<P>a<S>b<M>"
    assert "Suffix" in template.fields


def test_thinking_levels() -> None:
    template = Template("{{ .IsThinkSet }} {{ .Think }} {{ .ThinkLevel }}{{ range .Messages }}{{ end }}")
    rendered = [template.render_chat([], think=think, today=TODAY) for think in (None, False, True, "high")]
    assert rendered == ["false false ", "true false ", "true true ", "true true high"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        *((CHATML, True), (LEGACY, True), ("{{ .Prompt }}", True), ("{{- range .Messages }}{{ end }}", True)),
        *(("{% for m in messages %}{{ m.content }}{% endfor %}", False), ("{{ messages[0].content }}", False)),
    ],
)
def test_telling_go_from_jinja(source: str, expected: bool) -> None:
    assert is_go(source) is expected
    check(source)


@pytest.mark.parametrize(
    "source", ["{{ .X", "{% if %}", "{{ if .X }}", "{{ " + "[" * 5000 + "]" * 5000 + " }}", "{{ " + "9" * 5000 + "x }}"]
)
def test_templates_are_checked_before_they_are_installed(source: str) -> None:
    with pytest.raises(TemplateError):
        check(source)
