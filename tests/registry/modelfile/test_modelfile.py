"""The Modelfile grammar: Ollama's cases, the errors with their lines, and that what is written reads back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from barrel_inference.errors import DirectiveError, ModelfileError
from barrel_inference.registry.modelfile import Modelfile, parse, render
from barrel_inference.registry.modelfile.grammar import Command, format_command, parse_commands
from barrel_inference.registry.modelfile.parameters import (
    PARAMETERS,
    Parameter,
    check_parameter,
    check_parameters,
    loader_options,
    parse_parameter,
)

WHOLE = '''# a comment
FROM smollm2:135m
  # an indented one
parameter temperature 0.5
PARAMETER stop "<|end|>"
Parameter stop  hash # is text
SYSTEM """
You are # not a comment.
"Quoted" too.
"""
TEMPLATE """{{ .System }}
{{ .Prompt }}"""
MESSAGE user Hello there
MESSAGE assistant "General
Kenobi"
LICENSE MIT
LICENSE """two
lines"""
ADAPTER ./lora.gguf
'''


def test_every_directive() -> None:
    assert parse(WHOLE) == Modelfile(
        sources=("smollm2:135m",),
        parameters={"temperature": 0.5, "stop": ["<|end|>", "hash # is text"]},
        system='\nYou are # not a comment.\n"Quoted" too.\n',
        template="{{ .System }}\n{{ .Prompt }}",
        messages=({"role": "user", "content": "Hello there"}, {"role": "assistant", "content": "General\nKenobi"}),
        license=("MIT", "two\nlines"),
        adapters=("./lora.gguf",),
    )


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_encodings_and_line_ends(encoding: str, ending: str) -> None:
    text = f"FROM x{ending}SYSTEM Grüße 世界{ending}PARAMETER num_ctx 5"
    assert parse(text.encode(encoding)) == Modelfile(sources=("x",), system="Grüße 世界", parameters={"num_ctx": 5})


def test_utf16_big_endian() -> None:
    assert parse(b"\xfe\xff" + "FROM ü".encode("utf-16-be")).sources == ("ü",)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("SYSTEM   a b  ", "a b"),
        ('SYSTEM "  kept  "', "  kept  "),
        ('SYSTEM ""', ""),
        ('SYSTEM """"""', ""),
        ('SYSTEM "say "hi" now"', 'say "hi" now'),
        ("SYSTEM it's", "it's"),
        ('SYSTEM a "b', 'a "b'),
        ('SYSTEM """a\n\n"b"\n"""', 'a\n\n"b"\n'),
        ("SYSTEM \\n", "\\n"),
        ("SYSTEM <<EOF", "<<EOF"),
        ("SYSTEM\ta", "a"),
    ],
)
def test_values(text: str, value: str) -> None:
    assert parse(f"FROM x\n{text}\n").system == value


@pytest.mark.parametrize(
    ("text", "error", "line"),
    [
        ("", "no FROM line", None),
        ("SYSTEM a", "no FROM line", None),
        ("FROM x\n\nFRM y", r"\(line 3\): directive 'FRM' is not supported", 3),
        ("FROM x\nRENDERER y", "directive 'RENDERER' is not supported", 2),
        ("FROM x\nREQUIRES 0.1", "directive 'REQUIRES' is not supported", 2),
        ("FROM x\n=5", "directive '=5' is not supported", 2),
        ("FROM x\nSYSTEM:a", "directive 'SYSTEM' is not supported", 2),
        ("FROM x\nSYSTEM", "SYSTEM needs a value", 2),
        ('FROM x\nSYSTEM "a\nb', "unexpected EOF", 2),
        ('FROM x\nSYSTEM """a"', "unexpected EOF", 2),
        ("FROM x\nMESSAGE bot hi", "message role must be one of", 2),
        ("FROM x\nMESSAGE User hi", "message role must be one of", 2),
        ("FROM x\nPARAMETER", "PARAMETER needs a value", 2),
        ("FROM x\nPARAMETER temperature", "expected a parameter's name and a value", 2),
        ("FROM x\r\nPARAMETER temprature 1", "unknown parameter 'temprature'; did you mean temperature?", 2),
        ("FROM x\nPARAMETER temperature hot", r"invalid float value \[hot\]", 2),
        ("FROM x\nPARAMETER num_ctx 1.5", r"invalid int value \[1.5\]", 2),
        ("FROM x\nPARAMETER use_mmap maybe", r"invalid bool value \[maybe\]", 2),
        *(
            (f"FROM x\nPARAMETER temperature {text}", "invalid float value", 2)
            for text in ("nan", "-inf", "1e999", "1_0", "\u0663")
        ),
        *(
            (f"FROM x\nPARAMETER seed {text}", "invalid int value", 2)
            for text in ("1_0", "\uff11", "1e3", str(1 << 63), "9" * 5000)
        ),
        ("FROM x\nPARAMETER weight_residency hot", "one of eager, lazy, pinned", 2),
    ],
)
def test_mistakes(text: str, error: str, line: int | None) -> None:
    with pytest.raises(ModelfileError, match=error.replace("?", r"\?")) as caught:
        parse(text)
    assert caught.value.details.get("line") == line


def test_unknown_directives_have_their_own_code() -> None:
    with pytest.raises(DirectiveError) as caught:
        parse("FROM x\nEXPOSE 80")
    assert caught.value.code == "modelfile_directive_not_supported"
    assert caught.value.details == {"directive": "EXPOSE", "line": 2}


def test_deprecated_parameters_are_accepted_with_a_warning() -> None:
    modelfile = parse("FROM x\nPARAMETER low_vram true")
    assert modelfile.parameters == {} and "low_vram is deprecated" in modelfile.warnings[0]


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(ModelfileError, match="not valid UTF-8"):
        parse(b"FROM \xff")


VALUES = st.text(alphabet=st.one_of(st.sampled_from('" \n\t#"ab'), st.characters(exclude_categories=["Cs"])))


@given(st.sampled_from(["from", "system", "template", "license", "adapter"]), VALUES)
def test_what_is_written_reads_back(name: str, value: str) -> None:
    try:
        text = format_command(Command(name, value))
    except ModelfileError:
        assert '"""' in value
        return
    (command,) = parse_commands(text + "\n# after")
    assert (command.name, command.value) == (name, value)


PARAMETER_VALUES = {
    "int": st.integers(-(2**62), 2**62),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "str": st.lists(VALUES.filter(lambda text: '"""' not in text), min_size=1),
}


def parameters() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: values_of(parameter) for name, parameter in PARAMETERS.items()})


def values_of(parameter: Parameter) -> st.SearchStrategy[Any]:
    if parameter.least is not None:
        return st.integers(parameter.least, parameter.most)
    return PARAMETER_VALUES.get(parameter.kind, st.sampled_from(parameter.kind.split("|")))


SAFE = VALUES.filter(lambda text: '"""' not in text)
MESSAGES = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": SAFE})
MODELFILES = st.builds(
    Modelfile,
    sources=st.lists(SAFE, min_size=1, max_size=2).map(tuple),
    parameters=parameters(),
    system=st.none() | SAFE,
    template=st.none() | SAFE,
    messages=st.lists(MESSAGES, max_size=3).map(tuple),
    license=st.lists(SAFE, max_size=2).map(tuple),
    adapters=st.lists(SAFE, max_size=1).map(tuple),
    warnings=st.just(()),
)


@given(MODELFILES)
def test_round_trip(modelfile: Modelfile) -> None:
    assert parse(render(modelfile)) == modelfile
    assert parse(render(modelfile).encode()) == modelfile


@example("\f")
@given(st.text() | st.text(alphabet='FROMSYTE "\n#aPARAMETRx'))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parse(text)
    except ModelfileError as error:
        assert error.message


@pytest.mark.parametrize(
    ("name", "given_value", "value"),
    [
        *(("temperature", 1, 1.0), ("num_ctx", 4.0, 4), ("stop", "x", ["x"]), ("use_mmap", False, False)),
        *(("weight_residency", "lazy", "lazy"), ("type_k", "q8_0", "q8_0")),
    ],
)
def test_json_values(name: str, given_value: Any, value: Any) -> None:
    checked = check_parameter(name, given_value)
    assert checked == value and type(checked) is type(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", "1"), ("temperature", True), ("num_ctx", 1.5), ("stop", [1]), ("use_mmap", 1), ("nope", 1)]
    + [("temperature", value) for value in (float("nan"), float("inf"), 10**400)]
    + [("seed", value) for value in (float("nan"), float("-inf"), 1 << 63, 1e300)]
    + [("stop", ["\udcff"]), ("stop", "\ud800"), ("num_batch", 0), ("num_parallel", -1), ("num_thread", -3)]
    + [("num_batch", 1 << 30), ("main_gpu", 16)],
)
def test_json_values_of_the_wrong_type(name: str, value: Any) -> None:
    with pytest.raises(ModelfileError):
        check_parameters({name: value})


def test_go_spells_booleans_in_many_ways() -> None:
    assert [parse_parameter("use_mmap", text) for text in ("T", "TRUE", "1", "f", "False")] == [True] * 3 + [False] * 2


def test_load_time_parameters_go_to_the_loader_and_the_context_is_capped() -> None:
    given_values = {"num_ctx": 9000, "num_gpu": -1, "num_thread": 0, "temperature": 0.1, "num_batch": 64}
    assert loader_options(given_values, 4096) == {"n_ctx": 4096, "n_gpu_layers": 99, "n_batch": 64}
    assert loader_options({"num_ctx": 0}, 4096) == {}
