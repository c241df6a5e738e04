"""A real model through the whole server: installed over HTTP, chatting, warm after an unload and after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import RunningServer
from tests.support.models import smollm2
from tests.support.waiting import until

pytestmark = pytest.mark.model

HISTORY = "The committee met on Tuesday and discussed the harbour, the bridge and the price of rope. " * 40
OPTIONS = {"num_predict": 8, "seed": 1, "temperature": 0, "num_ctx": 2048}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[RunningServer]:
    with RunningServer(root, models={}, queue_timeout_s=120.0) as running:
        status, answer = running.post("/api/pull", {"model": str(smollm2()), "stream": False})
        assert (status, answer) == (200, {"status": "success"})
        (installed,) = running.request("GET", "/api/tags")[1]["models"]
        assert running.post("/api/copy", {"source": installed["name"], "destination": "smol"})[0] == 200
        yield running


def ask(server: RunningServer, text: str = HISTORY, model: str = "smol", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    body = {"model": model, "messages": messages, "options": OPTIONS, "stream": False, **more}
    status, answer = server.post("/api/chat", body)
    assert status == 200, answer
    result: dict[str, Any] = answer
    return result


def test_it_is_described(server: RunningServer) -> None:
    _, shown = server.post("/api/show", {"model": "smol", "verbose": True})
    assert shown["details"]["family"] == "llama"
    assert shown["details"]["quantization_level"] == "Q4_1"
    assert shown["model_info"]["llama.context_length"] == 8192
    assert shown["model_info"]["general.parameter_count"] > 130_000_000
    assert shown["tensors"]
    vocabulary = "tokenizer.ggml.tokens"
    assert len(shown["model_info"][vocabulary]) == shown["model_info"]["llama.vocab_size"]
    assert server.post("/api/show", {"model": "smol"})[1]["model_info"][vocabulary] is None
    assert "/" not in shown["modelfile"].replace("{{", "").splitlines()[1]


def test_unloading_and_loading_again_reads_nothing_twice(server: RunningServer) -> None:
    cold = ask(server)
    assert cold["prompt_eval_cached_count"] < 100
    unload(server)
    warm = ask(server)
    assert warm["message"]["content"] == cold["message"]["content"]
    assert warm["prompt_eval_cached_count"] > 0.9 * warm["prompt_eval_count"]


def unload(server: RunningServer) -> None:
    """And wait until the worker is gone."""
    server.post("/api/generate", {"model": "smol", "keep_alive": 0})
    until(lambda: not server.ask(lambda inside: any(slot.in_use for slot in inside.pool.slots())))


def test_an_alias_moves_with_the_next_request(server: RunningServer) -> None:
    assert server.post("/api/copy", {"source": "smol", "destination": "mine"})[0] == 200
    assert ask(server, "Hi", model="mine")["done"]
    create = {"model": "mine", "from": "smol", "system": "You are a parrot.", "parameters": {"num_predict": 3}}
    assert server.post("/api/create", {**create, "stream": False})[0] == 200
    rendered = ask(server, "Hi", model="mine", _debug_render_only=True)["_debug_info"]["rendered_template"]
    assert "You are a parrot." in rendered
    assert ask(server, "Hi", model="mine", options={})["eval_count"] <= 3
    loaded = server.ask(lambda inside: len(inside.pool.loaded()))
    assert loaded == 1, "two names of one file are one model"


def test_a_loaded_models_file_is_no_garbage(server: RunningServer) -> None:
    ask(server, "Hi")
    _, answer = server.post("/api/gc", {"dry_run": True})
    assert [each for each in answer["removed"] if each["kind"] == "blob"] == []


def test_eight_at_once_with_one_head(server: RunningServer) -> None:
    solo = ask(server, HISTORY + "Number 3?")
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda number: ask(server, f"{HISTORY}Number {number}?"), range(8)))
    assert all(answer["prompt_eval_cached_count"] > 0.8 * answer["prompt_eval_count"] for answer in answers)
    assert answers[3]["message"]["content"] == solo["message"]["content"]


def test_after_a_restart_of_the_server(server: RunningServer, root: Path) -> None:
    """Last, since it ends the other one."""
    before = ask(server)
    server.stop()
    with RunningServer(root, models={}) as again:
        after = ask(again)
    assert after["message"]["content"] == before["message"]["content"]
    assert after["prompt_eval_cached_count"] > 0.9 * after["prompt_eval_count"]
    assert after["cache"]["tier"] == "store"
