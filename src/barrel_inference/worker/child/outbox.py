"""The engine's results on their way out: one frame a step, and before the step who begins in it. Belongs to the engine
thread."""

from __future__ import annotations

from collections.abc import Callable

from barrel_inference.errors import BarrelError
from barrel_inference.types import CacheReport, Chunk, Completion
from barrel_inference.worker.messages import Msg, Output, Started


class Outbox:
    """``completed`` sees every end of a request before it is sent (None: an error); ``flushed`` is called after each
    step, also of those that only read a prompt."""

    def __init__(
        self,
        send: Callable[[list[Msg]], None],
        *,
        completed: Callable[[str, Completion | None], None],
        flushed: Callable[[], None],
    ) -> None:
        self._send = send
        self._completed = completed
        self._flushed = flushed
        self._messages: list[Msg] = []

    def started(self, request_id: str, prompt: list[int], start: int, seed: int, cache: CacheReport) -> None:
        self._messages.append(Started(request_id, tuple(prompt), start, seed, cache))
        self.flush()  # its first decode may be the last thing that this process does

    def output(self, request_id: str, chunk: Chunk) -> None:
        if chunk.completion is not None:
            self._completed(request_id, chunk.completion)
        self._messages.append(Output(request_id, chunk))

    def failed(self, request_id: str, error: BarrelError) -> None:
        self._completed(request_id, None)
        self._messages.append(Output(request_id, error=error.to_dict()))

    def flush(self) -> None:
        if self._messages:
            self._send(self._messages)
            self._messages = []
        self._flushed()
