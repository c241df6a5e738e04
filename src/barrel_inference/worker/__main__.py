"""The worker: ``python -m barrel_inference.worker FD``, FD being its end of the socket pair. One model, one context.

    main thread     builds everything, then is the engine thread; the only one that touches the context
    reader thread   takes frames off the socket: cancels, hands requests to the intake, ends the process with the socket
    intake thread   tokenises, looks up the store, answers calls
    report thread   counters, at most four times a second
    (writer and reader threads of the KV store)

Its life is its socket's life: when the runtime is gone, it is gone.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys

from barrel_inference.errors import LoadError
from barrel_inference.worker.channel import BlockingChannel, ChannelError
from barrel_inference.worker.child.worker import Worker
from barrel_inference.worker.messages import PROTOCOL, Down, Failed, Load

PR_SET_PDEATHSIG = 1

log = logging.getLogger(__name__)


def main() -> None:
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("barrel_inference").setLevel(logging.DEBUG)  # the runtime, which relays it, has the last word
    die_with_parent()
    channel: BlockingChannel[Down] = BlockingChannel(socket.socket(fileno=int(sys.argv[1])), Down)
    try:
        load = _first_message(channel)
    except ChannelError as error:
        channel.send([Failed(LoadError(f"the worker cannot read its orders: {error}").to_dict())])
        return
    if load is not None:
        Worker(channel, load.options).run()


def _first_message(channel: BlockingChannel[Down]) -> Load | None:
    """None when the runtime is gone already."""
    batch = channel.receive()
    if batch is None:
        return None
    match batch:
        case [Load(protocol=protocol) as load] if protocol == PROTOCOL:
            return load
        case [Load(protocol=protocol)]:
            raise ChannelError(f"protocol {protocol} instead of {PROTOCOL}: two different installations")
        case _:
            raise ChannelError("the first frame must be Load")


def die_with_parent() -> None:
    """Linux kills us when the thread that started us ends, even while a forked sibling keeps our socket open."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if parent == 1 or os.getppid() != parent:
            log.warning("the runtime is gone already")


if __name__ == "__main__":
    main()
