"""What a model is decides what it may be asked, and what its manifest says goes into its prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request

from barrel_inference.config import ServerOptions
from barrel_inference.server.models.catalog import Configured, Entry
from barrel_inference.server.models.pool import Pool
from barrel_inference.server.ollama.listing import Listing
from tests.server.fakes import FakeRuntime, FakeTimers
from tests.server.harness import STUB, RunningServer
from tests.support.memory import FakeMemory
from tests.support.waiting import until

MODELS = {
    "gone": {"model_path": "/nonexistent/dir/model.gguf"},
    "vectors": {"backend": "stub", "context_opts": {"n_ctx": 512, "embeddings": True}},
    "polite": {
        **STUB,
        "template": "{{ .System }}|{{ range .Messages }}{{ .Role }}:{{ .Content }};{{ end }}",
        "system": "Be polite.",
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
    },
}
SAID = {"role": "user", "content": "hi"}
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


@pytest.mark.parametrize("path", ["/api/generate", "/v1/completions"])
def test_clients_are_told_no_directory(server: RunningServer, path: str) -> None:
    status, body = server.post(path, {"model": "gone", "prompt": "hi"})
    said = body["error"] if path.startswith("/api") else body["error"]["message"]
    assert status == 500 and "(model.gguf: no such file or directory)" in said
    assert "nonexistent" not in str(body)


def test_it_loads_embeds_and_counts(server: RunningServer) -> None:
    assert server.post("/api/generate", {"model": "vectors"})[1]["done_reason"] == "load"
    assert len(server.post("/api/embed", {"model": "vectors", "input": ["a", "b"]})[1]["embeddings"]) == 2
    assert server.post("/api/tokenize", {"model": "vectors", "content": "hi"})[0] == 200
    (loaded,) = server.request("GET", "/api/ps")[1]["models"]
    assert loaded["name"] == "vectors:latest"
    assert server.post("/api/show", {"model": "vectors"})[1]["capabilities"] == ["embedding"]


def test_a_model_that_is_loaded_for_chats_and_for_embeddings_is_listed_once(server: RunningServer) -> None:
    ask = {"model": "polite", "keep_alive": "1h"}
    assert server.post("/api/generate", ask | {"prompt": "q", "options": {"num_predict": 1}})[0] == 200
    (alone,) = processes(server, "polite:latest")
    assert server.post("/api/embed", ask | {"input": "q", "keep_alive": "2h"})[0] == 200
    (both,) = processes(server, "polite:latest")
    assert both["size"] > alone["size"] > 0
    assert both["expires_at"] > alone["expires_at"]
    assert both["digest"] == alone["digest"]
    assert server.post("/api/generate", {"model": "polite", "keep_alive": 0})[0] == 200  # ends both
    until(lambda: not processes(server, "polite:latest"))


def processes(server: RunningServer, name: str) -> list[dict[str, Any]]:
    return [each for each in server.request("GET", "/api/ps")[1]["models"] if each["name"] == name]


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


@pytest.mark.parametrize(
    ("path", "more", "head"),
    [
        ("/api/generate", {}, "system:Be polite."),
        ("/api/generate", {"system": "Be brief."}, "system:Be brief."),
        ("/api/chat", {"messages": [{"role": "system", "content": "Be brief."}, SAID]}, "system:Be brief."),
        ("/api/chat", {"messages": [{"role": "developer", "content": "Be brief."}, SAID]}, "developer:Be brief."),
    ],
)
def test_the_models_messages_stand_behind_the_system_message(
    server: RunningServer, path: str, more: dict[str, Any], head: str
) -> None:
    """Of the request as of the model: many templates take one at the head only, and others put their own there."""
    rendered = server.post(path, GENERATE | more)[1]["_debug_info"]["rendered_template"]
    assert rendered.partition("|")[2] == f"{head};user:q;assistant:a;user:hi;"


def test_what_is_rendered_is_all_that_the_model_would_read(server: RunningServer) -> None:
    def rendered(**more: Any) -> str:
        return str(server.post("/api/generate", GENERATE | more)[1]["_debug_info"]["rendered_template"])

    before = server.post("/api/tokenize", {"model": "polite", "content": "earlier"})[1]["tokens"]
    assert rendered(context=before).startswith("earlier")
    assert rendered(raw=True) == "hi"


@pytest.mark.parametrize(("n_gpu_layers", "share"), [(33, 1.0), (11, 1 / 3), (0, 0.0)])
async def test_what_ps_says_to_be_on_a_gpu_is_what_the_worker_says(n_gpu_layers: int, share: float) -> None:
    """Whoever wanted it there, the request, the model or the configuration; and 0 for a build that cannot."""
    runtime = FakeRuntime()
    runtime.facts = {"n_layer": 32, "n_gpu_layers": n_gpu_layers}
    memory = FakeMemory(total=1 << 40, available=1 << 40)
    pool = Pool(runtime, ServerOptions(), memory=memory, timers=FakeTimers(), max_context=512)
    entry = Entry(name="a:latest", load={"model_opts": {"n_gpu_layers": 99}})
    async with pool.lease(entry):
        response = await Listing(Configured({}), pool).ps(Request({"type": "http"}))
    (loaded,) = json.loads(response.body)["models"]
    assert loaded["size_vram"] == pytest.approx(loaded["size"] * share, abs=1)
