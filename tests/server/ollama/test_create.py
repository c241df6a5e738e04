"""``/api/create``: what a FROM means here, and what cannot be made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.registry.weights import model as weights
from tests.server.harness import STUB, RunningServer

TEMPLATE = "{{ .System }}|{{ .Prompt }}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("create")
    file = root / "smol.gguf"
    file.write_bytes(weights())
    models: dict[str, Any] = {
        "stub": STUB,
        "smol": {
            "model_path": str(file),
            "context_opts": {"n_ctx": 512, "n_threads": 2, "n_ubatch": 64},
            "parameters": {"temperature": 0.3, "top_k": 7},
            "template": TEMPLATE,
            "system": "Be brief.",
            "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        },
        "tuned": {"model_path": str(file), "lora": [[str(file), 1.0]]},
        "roped": {"model_path": str(file), "context_opts": {"rope_freq_base": 5000.0}},
    }
    # A pull would end at once, and not with 400
    runtime = {"registry": {"ollama_endpoint": "http://127.0.0.1:9", "allow_private": True, "max_attempts": 1}}
    with RunningServer(root, models=models, runtime=runtime) as running:
        yield running


def create(server: RunningServer, **body: Any) -> tuple[int, Any]:
    return server.post("/api/create", {"model": "mine", "stream": False, **body})


@pytest.mark.parametrize("how", [{"from": "smol"}, {"modelfile": "FROM smol:latest"}])
def test_from_a_configured_model(server: RunningServer, how: dict[str, Any]) -> None:
    assert create(server, **how, system="Be kind.", parameters={"top_k": 9}) == (200, {"status": "success"})
    shown = server.post("/api/show", {"model": "mine"})[1]
    assert (shown["system"], shown["template"], len(shown["messages"])) == ("Be kind.", TEMPLATE, 2)
    given = dict(line.split() for line in shown["parameters"].splitlines())
    assert given == {"num_ctx": "512", "num_thread": "2", "temperature": "0.3", "top_k": "9"}
    assert str(server.config.model_cache_dir) not in json.dumps(shown)


@pytest.mark.parametrize(("name", "why"), [("stub", "without a file"), ("tuned", "lora"), ("roped", "rope_freq_base")])
def test_nobody_elses_weights_come_in_its_place(server: RunningServer, name: str, why: str) -> None:
    status, answer = create(server, **{"from": name})
    assert (status, why in answer["error"]) == (400, True)


def test_a_configured_name_of_an_installed_model(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(weights())
    models = {"alias": {"model_path": "base", "parameters": {"top_k": 3}}, "gone": {"model_path": "nobody"}}
    with RunningServer(tmp_path, models=models) as server:
        assert server.post("/api/pull", {"model": str(file), "name": "base", "stream": False})[0] == 200
        assert create(server, **{"from": "alias"})[0] == 200
        assert "top_k" in server.post("/api/show", {"model": "mine"})[1]["parameters"]
        assert create(server, **{"from": "gone"})[0] == 404


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("renderer", "harmony"),
        ("parser", "harmony"),
        ("requires", "0.14.0"),
        ("info", {"capabilities": ["vision"]}),
        ("draft_files", {"a.gguf": "sha256:" + "a" * 64}),
        ("draft_quantize", "q8_0"),
        ("remote_host", "https://ollama.com"),
    ],
)
def test_fields_that_would_make_another_model_are_refused(server: RunningServer, field: str, value: Any) -> None:
    status, answer = create(server, **{"from": "smol", field: value})
    assert status == 400
    assert answer == {
        "error": f"{field}: not supported by this server",
        "code": "modelfile_directive_not_supported",
    }
    assert create(server, **{"from": "smol", field: None})[0] == 200


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("directive", ["RENDERER harmony", "PARSER harmony", "REQUIRES 0.14", "DRAFT x", "WIBBLE 1"])
def test_so_are_directives_with_the_same_code(server: RunningServer, directive: str, stream: bool) -> None:
    status, answer = create(server, modelfile=f"FROM smol\n{directive}", stream=stream)
    assert (status, answer["code"]) == (400, "modelfile_directive_not_supported")
    assert answer["error"].startswith("(line 2): directive")


def test_other_mistakes_in_a_modelfile_have_theirs(server: RunningServer) -> None:
    status, answer = create(server, modelfile="FROM smol\nPARAMETER top_k many")
    assert (status, answer["code"]) == (400, "invalid_modelfile")
    assert "code" not in server.post("/api/show", {"model": "nobody"})[1]
