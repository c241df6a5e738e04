"""Puts a worker's parts together: backend, KV store, engine, and the threads around it. Runs on the engine thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from barrel_inference.config import LoadOptions
from barrel_inference.engine.backend import Backend
from barrel_inference.engine.backends import open_backend
from barrel_inference.engine.checkpoints import Checkpoints, open_checkpoints
from barrel_inference.engine.engine import Engine
from barrel_inference.engine.requests.generation import Generation
from barrel_inference.engine.requests.prepare import Preparer
from barrel_inference.engine.structured import Structured
from barrel_inference.engine.text import IncrementalText
from barrel_inference.types import Completion, Request
from barrel_inference.worker.child.calls import Calls
from barrel_inference.worker.child.facts import Facts
from barrel_inference.worker.child.intake import Intake
from barrel_inference.worker.child.outbox import Outbox
from barrel_inference.worker.child.prompts import Prompts
from barrel_inference.worker.child.report import Reporter
from barrel_inference.worker.messages import Msg, NeedRoom, Progress, Touched

Send = Callable[[Sequence[Msg]], None]


@dataclass(frozen=True)
class Assembly:
    backend: Backend
    store: Checkpoints
    engine: Engine
    intake: Intake
    reporter: Reporter
    facts: Facts


def assemble(options: LoadOptions, send: Send) -> Assembly:
    """Load everything; long. Raises BarrelError, or anything else when it is a bug."""
    backend = open_backend(options, lambda fraction: send([Progress("weights", fraction)]))
    send([Progress("cache", 1.0)])
    store = open_checkpoints(
        backend,
        options,
        need_room=lambda tier, n_bytes: send([NeedRoom(tier, n_bytes)]),
        touched=lambda tier, keys: send([Touched(tier, keys)]),
        clock=time.monotonic,
    )
    prompts = Prompts(backend, store, resume_wait_s=options.policy.session_resume_wait_ms / 1000)
    reporter = Reporter(send)

    def completed(request_id: str, completion: Completion | None) -> None:
        prompts.completed(request_id, completion)
        backend.pin_touched_weights()

    engine = Engine(backend, store, options, Outbox(send, completed=completed, flushed=reporter.news))
    facts = Facts(options, backend, store, engine)
    reporter.start(facts.counters)
    structured = Structured(backend)
    preparer = Preparer(
        backend,
        store,
        exact=options.exact,
        tokenise=prompts.tokenise,
        constrain=structured.mask,
        text_stream=lambda request: IncrementalText(backend, request.stop, keep_special=request.keep_special),
        clock=time.monotonic,
    )

    def prepare(request: Request) -> Generation:
        prompts.follow(request)
        try:
            return preparer.prepare(request)
        except Exception:
            prompts.completed(request.id, None)
            raise

    def compiling(request: Request) -> Future[Any] | None:
        return structured.compiling(request.constraint) if request.constraint else None

    calls = Calls(backend, engine, store)
    intake = Intake(engine, send, prepare=prepare, await_first=compiling, answer=calls.answer)
    return Assembly(backend, store, engine, intake, reporter, facts)
