"""A worker without an engine: it speaks the protocol and does what the prompt says. Run as ``fake_worker.py MODE FD``.

Prompts: ``count`` answers 0 1 2 …; ``die:N`` kills the process at token N in its first life; ``kill:N`` in every life;
``slow`` waits 5 ms a token. Modes: ``ok``, ``refuse``, ``die``, ``stall``, ``garbage``, ``deaf`` (ignores Drain),
``once:PATH`` (loads the first time only), ``note:PATH`` (writes there how long it may save).
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from barrel_inference.errors import LoadError
from barrel_inference.types import CacheReport, Chunk, Completion, ModelInfo, Request
from barrel_inference.worker.channel import BlockingChannel
from barrel_inference.worker.messages import (
    Call,
    Cancel,
    Counters,
    Down,
    Drain,
    Failed,
    Load,
    Output,
    Progress,
    Ready,
    Reply,
    Started,
    Submit,
)

INFO = ModelInfo(id="fake", phase="ready", n_ctx=128)


class FakeWorker:
    def __init__(self, channel: BlockingChannel[Down], mode: str) -> None:
        self.channel = channel
        self.mode = mode
        self.cancelled: set[str] = set()
        self.requests: queue.Queue[Request] = queue.Queue()

    def serve(self) -> None:
        threading.Thread(target=self.generate_all, daemon=True).start()
        while (batch := self.channel.receive()) is not None:
            for message in batch:
                self.handle(message)

    def handle(self, message: Down) -> None:
        match message:
            case Submit(request):
                self.requests.put(request)
            case Cancel(request_id):
                self.cancelled.add(request_id)
            case Call(call_id, "echo", args):
                self.channel.send([Reply(call_id, args)])
            case Call(call_id, "die", _):
                os.kill(os.getpid(), signal.SIGKILL)
            case Call(call_id, op, _):
                self.channel.send([Reply(call_id, error=LoadError(f"no op {op}").to_dict())])
            case Drain(_, save_s) if self.mode != "deaf":
                if self.mode.startswith("note:"):
                    Path(self.mode[5:]).write_text(f"{save_s}")
                print("WARNING drained", file=sys.stderr, flush=True)
                os._exit(0)

    def generate_all(self) -> None:
        while True:
            self.generate(self.requests.get())

    def generate(self, request: Request) -> None:
        prompt = str(request.prompt)
        emitted = list(request.resume.emitted) if request.resume else []
        self.channel.send([Started(request.id, (1, 2), 0, 7, CacheReport())])
        fatal = int(prompt.partition(":")[2]) if ":" in prompt else -1
        limit = request.max_tokens or 5
        while len(emitted) < limit and request.id not in self.cancelled:
            index = len(emitted)
            if index == fatal and (prompt.startswith("kill") or request.resume is None):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.005 if prompt == "slow" else 0)
            emitted.append(index)
            self.channel.send([Output(request.id, Chunk(text=f"{index} ", tokens=(index,)))])
        self.finish(request.id, emitted, "length" if len(emitted) == limit else "cancelled")

    def finish(self, request_id: str, emitted: list[int], reason: str) -> None:
        text = "".join(f"{index} " for index in emitted)
        completion = Completion(text=text, tokens=tuple(emitted), finish_reason=reason)  # type: ignore[arg-type]
        self.channel.send([Output(request_id, Chunk(completion=completion)), Counters({"done": 1.0}, INFO)])


def main() -> None:
    mode, fd = sys.argv[1], int(sys.argv[2])
    sock = socket.socket(fileno=fd)
    channel: BlockingChannel[Down] = BlockingChannel(sock, Down)
    batch = channel.receive()
    assert batch is not None and isinstance(batch[0], Load)
    if mode == "refuse":
        channel.send([Failed(LoadError("will not", why="refused").to_dict())])
        return
    if mode == "die" or (mode.startswith("once:") and Path(mode[5:]).exists()):
        print("GGML_ASSERT(false) failed", file=sys.stderr, flush=True)
        os.abort()
    if mode.startswith("once:"):
        Path(mode[5:]).touch()
    if mode == "garbage":
        sock.sendall(b"\x01\x00\x00\x00\xc1")
    channel.send([Progress("weights", 0.5)])
    if mode in ("stall", "garbage"):
        channel.receive()
        return
    channel.send([Ready(INFO)])
    FakeWorker(channel, mode).serve()


if __name__ == "__main__":
    main()
