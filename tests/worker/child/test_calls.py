"""Questions to a worker that cannot be answered without giving something up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from barrel_inference.config import ContextOpts, LoadOptions
from barrel_inference.types import Request, Sampling
from barrel_inference.worker.child.assembly import assemble
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
