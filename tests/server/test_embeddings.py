"""A real embedding model behind all embedding routes: they agree with each other and with the original weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.server.harness import RunningServer
from tests.support.minilm import minilm_gguf, reference, wordpieces

pytestmark = [pytest.mark.model, pytest.mark.slow]

TEXTS = [
    "A small model that embeds sentences.",
    "Paris is the capital of France!",
    "The café's naïve résumé, re-read twice.",
    "def add(a, b): return a + b",
    "word " * 200,
    "x",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    root = tmp_path_factory.mktemp("embeddings")
    model = {"model_path": str(minilm_gguf(root / "minilm.gguf")), "context_opts": {"n_ctx": 512, "embeddings": True}}
    with RunningServer(root, models={"minilm": model}) as running:
        yield running


@pytest.fixture(scope="module")
def vectors(server: RunningServer) -> list[list[float]]:
    status, found = server.post("/v1/embeddings", {"model": "minilm", "input": TEXTS})
    assert status == 200, found
    return [each["embedding"] for each in found["data"]]


def test_they_are_those_of_the_original_weights(vectors: list[list[float]]) -> None:
    cosines = [float(np.dot(vector, reference(text))) for vector, text in zip(vectors, TEXTS, strict=True)]
    assert min(cosines) > 0.999, cosines


def test_the_routes_agree(server: RunningServer, vectors: list[list[float]]) -> None:
    _, ollama = server.post("/api/embed", {"model": "minilm", "input": TEXTS})
    _, older = server.post("/api/embeddings", {"model": "minilm", "prompt": TEXTS[0]})
    assert np.allclose(ollama["embeddings"], vectors, atol=1e-6)
    direction = np.array(older["embedding"]) / np.linalg.norm(older["embedding"])
    assert np.allclose(direction, vectors[0], atol=1e-6)


def test_tokens_are_counted_as_the_original_counts_them(server: RunningServer) -> None:
    _, found = server.post("/v1/embeddings", {"model": "minilm", "input": TEXTS})
    assert found["usage"]["prompt_tokens"] == sum(len(wordpieces(text)) for text in TEXTS)


def test_tokens_are_an_input_as_well(server: RunningServer, vectors: list[list[float]]) -> None:
    _, found = server.post("/v1/embeddings", {"model": "minilm", "input": wordpieces(TEXTS[0])})
    assert np.allclose(found["data"][0]["embedding"], vectors[0], atol=1e-6)


def test_an_input_that_does_not_fit(server: RunningServer) -> None:
    status, found = server.post("/v1/embeddings", {"model": "minilm", "input": "word " * 1000})
    assert (status, found["error"]["code"]) == (400, "context_length_exceeded")
    status, found = server.post("/api/embed", {"model": "minilm", "input": "word " * 1000})
    assert status == 200 and len(found["embeddings"]) == 1
