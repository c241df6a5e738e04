"""``exact="cold"``: to the bit what a context without a cache says, whatever was kept by whom."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from barrel_inference.config import ContextOpts, LoadOptions
from barrel_inference.engine.llama import LlamaBackend
from barrel_inference.types import CacheMode, Resume, Sampling, TokenLogprob
from tests.engine.fakes import Result
from tests.engine.lives import Worker
from tests.support.tiny_models import ARCHS, N_VOCAB, Arch, tiny_model

pytestmark = pytest.mark.model

TOKENS = tuple((i * i + 3 * i) % N_VOCAB for i in range(1200))
# A last chunk of fewer rows than a tile, of one more, whole blocks, and what goes on from each.
LENGTHS = (183, 300, 330, 570)
SIZES = [(512, None), (100, None), (48, None), (512, 100)]
KEPT = [arch for arch in ARCHS if arch != "gemma3"]  # a window is computed anew
GREEDY = Sampling(temperature=0, seed=1, ignore_eos=True)
Sizes = tuple[int, int | None]


@contextmanager
def life(arch: Arch, path: Path, sizes: Sizes = SIZES[0], n_seq_max: int = 1) -> Iterator[Worker]:
    context = ContextOpts(
        n_ctx=1200, n_batch=sizes[0], n_ubatch=sizes[1], n_seq_max=n_seq_max, n_threads=1, flash_attn=True
    )
    backend = LlamaBackend(LoadOptions(id="m", model_path=str(tiny_model(arch)), context_opts=context))
    worker = Worker(backend, path)
    assert worker.store.verdict == "exact"
    yield worker
    worker.close()
    backend.close()


def ask(worker: Worker, n: int, cache: CacheMode = "auto", **fields: object) -> Result:
    options = {"max_tokens": 3, "logprobs": True, "top_logprobs": 3, **fields}
    return worker.complete(
        TOKENS[:n], sampling=Sampling(temperature=0, seed=1, ignore_eos=True), cache=cache, **options
    )


def told(result: Result) -> list[TokenLogprob]:
    return [entry for chunk in result.chunks for entry in chunk.logprobs]


def restored(worker: Worker, lengths: tuple[int, ...] = LENGTHS) -> int:
    """Ask all, each answer to be the one of a context without a cache; tokens restored."""
    total = 0
    for n in lengths:
        cold = ask(worker, n, "off", exact="cold")
        warm = ask(worker, n, exact="cold")
        assert told(warm) == told(cold), (n, warm.cache)
        assert worker.store.flush(60.0)
        total += warm.cache.restored_tokens
    return total


@pytest.mark.parametrize("arch", ARCHS)
def test_what_contexts_of_other_batch_sizes_kept(tmp_path: Path, arch: Arch) -> None:
    total = 0
    for sizes in SIZES:
        with life(arch, tmp_path, sizes) as worker:
            total += restored(worker)
    assert bool(total) == (arch in KEPT)


@pytest.mark.parametrize("arch", ARCHS)
def test_what_followed_live_from_the_end_of_another_prompt(tmp_path: Path, arch: Arch) -> None:
    """The last rows of a prompt that is gone on with are not those of one prompt."""
    with life(arch, tmp_path) as worker:
        for n in LENGTHS:
            assert ask(worker, n, max_tokens=0).done.finish_reason == "length"
    with life(arch, tmp_path) as worker:
        assert bool(restored(worker, (600, 400, 350))) == (arch in KEPT)


@pytest.mark.parametrize("session", [None, "s"], ids=["too short to be kept", "pinned"])
@pytest.mark.parametrize("arch", ARCHS)
def test_what_was_read_beside_anothers_cells(tmp_path: Path, arch: Arch, session: str | None) -> None:
    """Attention sums in the order of cells, and those of others lie before one's own."""
    for n in LENGTHS:
        with life(arch, tmp_path / str(n), n_seq_max=2) as worker:
            worker.complete(TOKENS[900:970] if session else TOKENS[900:920], max_tokens=3, session=session)
            ask(worker, n, max_tokens=1)
        with life(arch, tmp_path / str(n)) as worker:
            restored(worker, (n,))


@pytest.mark.parametrize("arch", ARCHS)
def test_stops_where_states_are_kept_change_nothing(tmp_path: Path, arch: Arch) -> None:
    """Neither those of the request's own messages, nor what a request that waits for a common head asks for."""
    with life(arch, tmp_path) as worker:
        for n in LENGTHS:
            cold = ask(worker, n, "off", exact="cold")
            assert told(ask(worker, n, exact="cold", boundaries=(100, 200, n - 1))) == told(cold), n


@pytest.mark.parametrize("arch", ARCHS)
def test_what_was_generated_is_no_prompt_when_a_request_is_resumed(tmp_path: Path, arch: Arch) -> None:
    """A worker died before the prompt was kept as such; somebody's answer of the same tokens was."""
    forced = {token: -float("inf") for token in range(N_VOCAB) if token != 5}
    with life(arch, tmp_path) as worker:
        only = msgspec.structs.replace(GREEDY, logit_bias=forced)
        answer = worker.complete(TOKENS[:100], sampling=only, max_tokens=200).done
    prompt = (*answer.prompt_tokens, *answer.tokens)
    with life(arch, tmp_path) as worker:
        asked = {"sampling": GREEDY, "exact": "cold", "max_tokens": 6, "logprobs": True, "top_logprobs": 3}
        cold = worker.complete(prompt, cache="off", **asked)
        resume = Resume(prompt_tokens=prompt, emitted=cold.done.tokens[:3], start=0)
        resumed = worker.complete(prompt, resume=resume, **asked)
    assert resumed.done.tokens == cold.done.tokens
    assert told(resumed) == told(cold)[3:]
