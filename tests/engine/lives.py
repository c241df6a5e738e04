"""A worker's life without its process: store and engine on a real context, the same weights for many lives."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from barrel_inference.engine.checkpoints import Checkpoints
from barrel_inference.engine.engine import Engine
from barrel_inference.engine.llama import LlamaBackend
from barrel_inference.engine.requests.prepare import Preparer, Tokenised
from barrel_inference.engine.structured import Structured
from barrel_inference.engine.text import IncrementalText
from barrel_inference.types import Exactness, Request, Sampling
from tests.engine.fakes import Result, Results
from tests.kvcache.harness import open_on, options, spec


class Worker:
    """Store and engine of one life, on a fresh context of the same weights."""

    def __init__(self, backend: LlamaBackend, path: Path | None, exact: Exactness = "live") -> None:
        backend.rebuild()
        load = options(*([spec(path)] if path else []), exact=exact)
        self.store: Checkpoints = open_on(backend, load)
        self.results = Results()
        self.engine = Engine(backend, self.store, load, self.results)
        self._preparer = Preparer(
            backend,
            self.store,
            exact=exact,
            tokenise=lambda request: Tokenised(_tokenise(backend, request), ()),
            constrain=Structured(backend).mask,
            text_stream=lambda request: IncrementalText(backend, request.stop),
            clock=time.monotonic,
        )

    def submit(self, request_id: str, prompt: str | tuple[int, ...], **fields: Any) -> None:
        sampling = fields.pop("sampling", Sampling(temperature=0, seed=1))
        request = Request(id=request_id, prompt=prompt, sampling=sampling, **fields)
        self.engine.submit(self._preparer.prepare(request))

    def run(self) -> Worker:
        deadline = time.monotonic() + 250
        while self.engine.step() or self.engine.snapshot().queued:
            assert time.monotonic() < deadline
        return self

    def complete(self, prompt: str | tuple[int, ...], **fields: Any) -> Result:
        request_id = f"r{len(self.results)}"
        self.submit(request_id, prompt, **fields)
        return self.run().results[request_id]

    def close(self) -> None:
        assert self.store.flush(60.0)
        self.store.close()


def _tokenise(backend: LlamaBackend, request: Request) -> list[int]:
    return backend.tokenize(str(request.prompt).encode(), add_special=True, parse_special=True)
