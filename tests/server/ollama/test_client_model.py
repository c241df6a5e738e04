"""Ollama's own Python client on a real model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.harness import RunningServer
from tests.server.programs import MODEL, real_server
from tests.support.models import smollm2

ollama = pytest.importorskip("ollama", reason="the clients extra is not installed")

pytestmark = [pytest.mark.model, pytest.mark.slow]

ASK = [{"role": "user", "content": "Tell me a long story."}]
OPTIONS = {"num_predict": 16, "seed": 1, "temperature": 0}
YES = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    yield from real_server(tmp_path_factory.mktemp("client"))


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[Any]:
    with ollama.Client(host=server.url) as one:
        yield one


def test_chat_whole_streamed_and_again(client: Any) -> None:
    whole = client.chat(model=MODEL, messages=ASK, options=OPTIONS)
    assert (whole.done_reason, whole.eval_count) == ("length", 16)
    streamed = list(client.chat(model=MODEL, messages=ASK, options=OPTIONS, stream=True))
    assert "".join(piece.message.content for piece in streamed) == whole.message.content
    assert streamed[-1].prompt_eval_count == whole.prompt_eval_count


def test_generate_and_go_on(client: Any) -> None:
    first = client.generate(model=MODEL, prompt="The sky is", options=OPTIONS)
    second = client.generate(model=MODEL, prompt="And the sea?", context=first.context, options=OPTIONS)
    assert second.prompt_eval_count > len(first.context)
    assert second.context[: len(first.context)] == first.context


def test_a_form_logprobs_and_a_call(client: Any) -> None:
    formed = client.chat(model=MODEL, messages=ASK, format=YES, options={**OPTIONS, "num_predict": 200})
    assert set(json.loads(formed.message.content)) == {"ok"}
    scored = client.generate(model=MODEL, prompt="Hi", logprobs=True, top_logprobs=2, options=OPTIONS)
    assert len(scored.logprobs) == scored.eval_count
    assert all(len(each.top_logprobs) == 2 for each in scored.logprobs)


def test_vectors(client: Any) -> None:
    found = client.embed(model=MODEL, input=["a cat", "a dog"])
    assert len(found.embeddings) == 2
    assert abs(sum(value * value for value in found.embeddings[0]) - 1) < 1e-3


def test_a_story_longer_than_the_context(tmp_path_factory: pytest.TempPathFactory) -> None:
    models = {"small": {"model_path": str(smollm2()), "context_opts": {"n_ctx": 128}, "exact": "cold"}}
    with RunningServer(tmp_path_factory.mktemp("long"), models=models) as server:
        options = {"num_predict": 200, "temperature": 0, "ignore_eos": True, "num_keep": 8}
        body = {"model": "small", "prompt": "Once upon a time", "raw": True, "stream": False, "options": options}
        status, story = server.post("/api/generate", body)
        assert (status, story["eval_count"]) == (200, 200)
        written = server.post("/api/tokenize", {"model": "small", "content": body["prompt"] + story["response"]})[1]
        assert written["count"] >= 200
        assert 0 < story["shifted_tokens"] < 200
        again = server.post("/api/generate", body)[1]
        assert again["response"] == story["response"]
