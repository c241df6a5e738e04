"""Questions to a worker that cannot be answered without giving something up, or waiting for something."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from barrel_inference.config import ContextOpts, LoadOptions
from barrel_inference.engine.checkpoints import Checkpoints
from barrel_inference.engine.stub import StubBackend
from barrel_inference.types import CacheLookup, Request, Sampling
from barrel_inference.worker.child.assembly import assemble
from barrel_inference.worker.child.calls import Calls
from barrel_inference.worker.messages import Call, Msg, Output, Reply
from tests.support.tiny_models import tiny_model
from tests.support.waiting import step_until


@pytest.mark.model
def test_an_input_is_embedded_although_an_idle_sequence_holds_the_whole_context() -> None:
    sent: list[Msg] = []

    def send(messages: Sequence[Msg]) -> None:
        sent.extend(messages)

    options = LoadOptions(id="m", model_path=str(tiny_model("llama")), context_opts=ContextOpts(n_ctx=256), cache=False)
    parts = assemble(options, send)

    prompt = tuple(n % 100 for n in range(240))
    parts.intake.submit(Request(id="r", prompt=prompt, sampling=Sampling(), max_tokens=1))
    step = parts.engine.step
    step_until(lambda: any(isinstance(each, Output) and each.chunk and each.chunk.completion for each in sent), step)
    parts.intake.call(Call(1, "embed", {"inputs": [list(range(100))]}))
    step_until(lambda: any(isinstance(each, Reply) for each in sent), step)
    (reply,) = (each for each in sent if isinstance(each, Reply))
    assert reply.error is None
    parts.backend.close()


class Saving(Checkpoints):
    """Finds everything once it is written, which a wait of any length brings about unless the disk is stuck."""

    def __init__(self, backend: StubBackend, *, is_written: bool = False, is_stuck: bool = False) -> None:
        super().__init__(backend, "exact")
        self._is_written, self._is_stuck = is_written, is_stuck

    def flush(self, timeout_s: float) -> bool:
        self._is_written |= timeout_s > 0 and not self._is_stuck
        return self._is_written

    def lookup(self, tokens: Sequence[int], *, salt: str = "") -> CacheLookup:
        return CacheLookup(prompt_tokens=len(tokens), cached_tokens=len(tokens) * self._is_written)


@pytest.mark.parametrize(
    ("state", "cached"), [({"is_written": True}, 3), ({}, 3), ({"is_stuck": True}, 0)], ids=["there", "soon", "stuck"]
)
def test_a_lookup_sees_what_is_on_its_way_to_the_store(state: dict[str, bool], cached: int) -> None:
    backend = StubBackend(LoadOptions(id="m", backend="stub"))
    unused: Any = None
    found = Calls(backend, unused, Saving(backend, **state)).answer("cache_lookup", {"prompt": [1, 2, 3], "salt": ""})
    assert isinstance(found, CacheLookup) == ("is_written" in state)  # who waits holds up no other question
    assert (found.result(60) if isinstance(found, Future) else found).cached_tokens == cached
