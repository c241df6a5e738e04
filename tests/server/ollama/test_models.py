"""What a model is decides what it may be asked, and what its manifest says goes into its prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.harness import STUB, RunningServer

MODELS = {
    "vectors": {"backend": "stub", "context_opts": {"n_ctx": 512, "embeddings": True}},
    "polite": {
        **STUB,
        "template": "{{ .System }}|{{ range .Messages }}{{ .Role }}:{{ .Content }};{{ end }}",
        "system": "Be polite.",
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
    },
}
GENERATE = {"model": "polite", "prompt": "hi", "stream": False, "_debug_render_only": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("models"), models=MODELS) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "asked", "task"),
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "hi"}]}, "chat"),
        ("/api/generate", {"prompt": "hi"}, "generate"),
        ("/api/generate", {"prompt": "hi", "raw": True}, "generate"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, "chat"),
        ("/v1/completions", {"prompt": "hi"}, "generate"),
    ],
)
def test_a_model_that_embeds_does_nothing_else(
    server: RunningServer, path: str, asked: dict[str, Any], task: str
) -> None:
    status, body = server.post(path, {"model": "vectors", **asked})
    said = body["error"] if path.startswith("/api") else body["error"]["message"]
    assert (status, said) == (400, f'"vectors" does not support {task}')


def test_it_loads_embeds_and_counts(server: RunningServer) -> None:
    assert server.post("/api/generate", {"model": "vectors"})[1]["done_reason"] == "load"
    assert len(server.post("/api/embed", {"model": "vectors", "input": ["a", "b"]})[1]["embeddings"]) == 2
    assert server.post("/api/tokenize", {"model": "vectors", "content": "hi"})[0] == 200
    (loaded,) = server.request("GET", "/api/ps")[1]["models"]
    assert loaded["name"] == "vectors:latest"
    assert server.post("/api/show", {"model": "vectors"})[1]["capabilities"] == ["embedding"]


@pytest.mark.parametrize(
    ("more", "head"),
    [
        ({}, "Be polite."),
        ({"system": ""}, "Be polite."),
        ({"system": "Be brief."}, "Be brief."),
    ],
)
def test_the_system_message_is_the_models_unless_the_request_has_one(
    server: RunningServer, more: dict[str, Any], head: str
) -> None:
    rendered = server.post("/api/generate", GENERATE | more)[1]["_debug_info"]["rendered_template"]
    assert head in rendered
    assert ("Be polite." in rendered) == (head == "Be polite.")
    assert "q" in rendered


def test_the_models_messages_come_once(server: RunningServer) -> None:
    rendered = server.post("/api/generate", GENERATE | {"context": [1, 2]})[1]["_debug_info"]["rendered_template"]
    assert "hi" in rendered
    assert "user:q" not in rendered
