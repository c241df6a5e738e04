"""Embeddings: of an encoder without memory, of a pooling context, and of a model that generates as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from barrel_inference.config import LoadOptions, ModelOpts
from barrel_inference.engine.backend import DecodeStatus, Slice
from barrel_inference.engine.llama import LlamaBackend
from barrel_inference.errors import ContextExceededError, DecodeError, KVFullError, NoWeightsError, UnsupportedError
from tests.engine.llama.opened import feed, opened
from tests.support.tiny_files import BERT_CTX, tiny_bert
from tests.support.tiny_models import N_VOCAB, tiny_model

pytestmark = pytest.mark.model

INPUTS = [[5, 9, 33, 2], [7], list(range(1, 40)), [33, 9, 5, 2], [5, 9, 33, 2]]


Loader = Callable[[Path], Any]
LOADERS: dict[str, Loader] = {
    "bert": lambda folder: opened(tiny_bert(folder / "bert.gguf"), embeddings=True),
    "bert generating": lambda folder: opened(tiny_bert(folder / "bert.gguf")),
    "llama": lambda _: opened(tiny_model("llama"), embeddings=True, pooling="mean"),
    "llama last": lambda _: opened(tiny_model("llama"), embeddings=True, pooling="last"),
    "llama generating": lambda _: opened(tiny_model("llama")),
    "gemma3 generating": lambda _: opened(tiny_model("gemma3")),
    "mamba generating": lambda _: opened(tiny_model("mamba")),
    "lfm2": lambda _: opened(tiny_model("lfm2"), embeddings=True, pooling="mean"),
}


@pytest.fixture(params=list(LOADERS.values()), ids=list(LOADERS))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LlamaBackend]:
    with request.param(tmp_path) as one:
        yield one


def test_vectors_are_normalised_and_belong_to_their_inputs(backend: LlamaBackend) -> None:
    together = backend.embed(INPUTS)
    assert [vector.shape for vector in together] == [(backend.info.n_embd,)] * len(INPUTS)
    assert np.allclose([np.linalg.norm(vector) for vector in together], 1, atol=1e-5)
    for tokens, vector in zip(INPUTS, together, strict=True):
        assert float(vector @ backend.embed([tokens])[0]) > 0.999
    assert float(together[0] @ together[4]) > 0.999
    assert float(together[0] @ together[2]) < 0.999


def test_more_inputs_than_sequences_and_more_tokens_than_a_batch(backend: LlamaBackend) -> None:
    inputs = [[1 + index % 50] * 30 for index in range(7)]
    vectors = backend.embed(inputs)
    assert len(vectors) == 7
    assert float(vectors[6] @ backend.embed([inputs[6]])[0]) > 0.999
    assert backend.embed([]) == []


@pytest.mark.parametrize("tokens", [[], [3] * 257])
def test_an_input_that_does_not_fit_is_a_typed_error(backend: LlamaBackend, tokens: list[int]) -> None:
    with pytest.raises(ContextExceededError, match="1 to"):
        backend.embed([[1], tokens])
    assert len(backend.embed([[1]])) == 1


@pytest.mark.parametrize("token", [-1, N_VOCAB, 2**31 - 1])
def test_a_token_outside_the_vocabulary_is_refused(backend: LlamaBackend, token: int) -> None:
    with pytest.raises(DecodeError):
        backend.embed([[1, token]])
    assert len(backend.embed([[1]])) == 1


def test_an_encoder_takes_no_more_than_a_physical_batch(tmp_path: Path) -> None:
    """Without causality llama.cpp aborts the process for more."""
    for embeddings in (True, False):
        with opened(tiny_bert(tmp_path / "bert.gguf"), n_batch=64, n_ubatch=32, embeddings=embeddings) as bert:
            assert not bert.info.has_memory
            assert 32 <= bert.info.n_ubatch < 64
            assert len(bert.embed([[1] * bert.info.n_ubatch])) == 1
            with pytest.raises(ContextExceededError, match=f"1 to {bert.info.n_ubatch}"):
                bert.embed([[1] * (bert.info.n_ubatch + 1)])


def test_an_encoder_takes_no_more_than_the_positions_it_was_trained_on(tmp_path: Path) -> None:
    with opened(tiny_bert(tmp_path / "bert.gguf"), n_ctx=2 * BERT_CTX, n_batch=2 * BERT_CTX, embeddings=True) as bert:
        assert len(bert.embed([[1] * BERT_CTX])) == 1
        with pytest.raises(ContextExceededError, match=f"1 to {BERT_CTX}"):
            bert.embed([[1] * (BERT_CTX + 1)])


@pytest.mark.parametrize(("n_seq_max", "n_batch"), [(1, 63), (3, 64), (4, 100), (7, 3)])
def test_any_number_of_sequences_pools(tmp_path: Path, n_seq_max: int, n_batch: int) -> None:
    """llama.cpp aborts while it makes a pooling context whose batch is no multiple of the sequences."""
    with opened(tiny_bert(tmp_path / "bert.gguf"), n_seq_max=n_seq_max, n_batch=n_batch, embeddings=True) as bert:
        assert len(bert.embed([[1, 2, 3]] * 9)) == 9


def test_mean_pooling_is_the_same_done_here_and_by_llama() -> None:
    with opened(tiny_model("llama"), embeddings=True, pooling="mean") as pooling, opened(tiny_model("llama")) as plain:
        for ours, theirs in zip(plain.embed(INPUTS), pooling.embed(INPUTS), strict=True):
            assert float(ours @ theirs) > 0.9999


@pytest.mark.parametrize("arch", ["llama", "gemma3", "jamba"])
def test_embedding_disturbs_no_resident_sequence(arch: Any) -> None:
    def second_logits(between: Callable[[LlamaBackend], object]) -> bytes:
        with opened(tiny_model(arch)) as backend:
            assert backend.decode([Slice(0, 0, (1, 2, 3, 4, 5), want_logits=True)], None) is DecodeStatus.OK
            between(backend)
            assert backend.decode([Slice(0, 5, (6,), want_logits=True)], None) is DecodeStatus.OK
            return backend.logits(0).tobytes()

    assert second_logits(lambda backend: backend.embed(INPUTS)) == second_logits(lambda backend: None)


def test_after_an_embedding_only_what_is_asked_for_is_computed() -> None:
    """While llama.cpp is to give token vectors, it computes the logits of every token as well."""
    with opened(tiny_model("llama")) as backend:
        backend.embed(INPUTS)
        assert backend.decode([Slice(0, 0, (1, 2, 3), want_logits=False)], None) is DecodeStatus.OK
        with pytest.raises(DecodeError, match="no logits"):
            backend.logits(0)


def test_a_ranking_context_does_not_embed() -> None:
    with (
        opened(tiny_model("llama"), embeddings=True, pooling="rank") as backend,
        pytest.raises(UnsupportedError, match="scores"),
    ):
        backend.embed([[1]])


def test_a_tokenizer_does_not_embed() -> None:
    options = LoadOptions(id="m", model_path=str(tiny_model("llama")), model_opts=ModelOpts(vocab_only=True))
    backend = LlamaBackend(options)
    with pytest.raises(NoWeightsError):
        backend.embed([[1]])
    backend.close()


def test_no_room_beside_the_sequences_is_a_typed_error() -> None:
    with opened(tiny_model("llama"), n_seq_max=1) as backend:
        feed(backend, 0, 0, 200)
        with pytest.raises(KVFullError):
            backend.embed([list(range(100))])
        assert backend.seq_bounds(0) == (0, 199)
        assert backend.seq_bounds(backend.scratch) == (-1, -1)
        backend.seq_remove(0, -1, -1)
        assert len(backend.embed([list(range(100))])) == 1
