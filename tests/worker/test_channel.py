"""Frames over a real socket pair: both ends, any split, limits, and the two kinds of ending."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest
import uvloop

from barrel_inference.types import Chunk, ModelInfo
from barrel_inference.worker.channel import AsyncChannel, BlockingChannel, ChannelError, encode
from barrel_inference.worker.messages import Call, Cancel, Down, Output, Progress, Ready


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


async def test_messages_cross_in_both_directions(pair: tuple[socket.socket, socket.socket]) -> None:
    child: BlockingChannel[Down] = BlockingChannel(pair[1], Down)
    parent = await AsyncChannel.open(pair[0])
    parent.send([Cancel("a"), Call(1, "tokenize", {"text": "é\0", "n": [1, 2]})])
    assert await asyncio.to_thread(child.receive) == [Cancel("a"), Call(1, "tokenize", {"text": "é\0", "n": [1, 2]})]
    child.send([Ready(ModelInfo(id="m", phase="ready")), Output("a", Chunk(text="hi", tokens=(1, 2)))])
    assert await parent.receive() == [
        Ready(ModelInfo(id="m", phase="ready")),
        Output("a", Chunk(text="hi", tokens=(1, 2))),
    ]
    parent.close()


async def test_a_frame_larger_than_every_buffer_arrives_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    child: BlockingChannel[Down] = BlockingChannel(pair[1], Down)
    parent = await AsyncChannel.open(pair[0])
    text = "x" * 3_000_000
    sender = threading.Thread(target=child.send, args=([Output("a", Chunk(text=text))],))
    sender.start()
    assert await parent.receive() == [Output("a", Chunk(text=text))]
    sender.join()
    parent.send([Cancel(text)])
    assert await asyncio.to_thread(child.receive) == [Cancel(text)]
    parent.close()


@pytest.mark.parametrize("step", [1, 3, 7])
def test_any_split_of_the_bytes_gives_the_same_messages(pair: tuple[socket.socket, socket.socket], step: int) -> None:
    frames = encode([Cancel("a")]) + encode([Cancel("b"), Cancel("c")])

    def trickle() -> None:
        for index in range(0, len(frames), step):
            pair[0].sendall(frames[index : index + step])
        pair[0].close()

    thread = threading.Thread(target=trickle)
    thread.start()
    child: BlockingChannel[Down] = BlockingChannel(pair[1], Down)
    assert [child.receive(), child.receive(), child.receive()] == [[Cancel("a")], [Cancel("b"), Cancel("c")], None]
    thread.join()


@pytest.mark.parametrize("cut", [1, 3, 4, 6])
async def test_an_end_inside_a_frame_is_an_error_on_both_ends(cut: int) -> None:
    frame = encode([Cancel("abc")])
    ours, theirs = socket.socketpair()
    ours.sendall(frame[:cut])
    ours.close()
    child: BlockingChannel[Down] = BlockingChannel(theirs, Down)
    with pytest.raises(ChannelError):
        child.receive()
    theirs.close()

    ours, theirs = socket.socketpair()
    theirs.sendall(frame[:cut])
    theirs.close()
    parent = await AsyncChannel.open(ours)
    with pytest.raises(ChannelError):
        await parent.receive()
    parent.close()


async def test_a_clean_end_is_none_on_both_ends() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    child: BlockingChannel[Down] = BlockingChannel(theirs, Down)
    assert child.receive() is None
    theirs.close()

    ours, theirs = socket.socketpair()
    theirs.close()
    parent = await AsyncChannel.open(ours)
    assert await parent.receive() is None
    parent.send([Cancel("nobody listens")])
    parent.close()


async def test_an_oversized_frame_is_refused_when_sent_and_when_announced(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    with pytest.raises(ChannelError, match="exceeds the limit of 10"):
        encode([Cancel("x" * 100)], max_bytes=10)
    pair[1].sendall(encode([Progress("x" * 100, 0.0)]))
    parent = await AsyncChannel.open(pair[0], max_bytes=10)
    with pytest.raises(ChannelError, match="the limit is 10"):
        await parent.receive()
    parent.close()


@pytest.mark.parametrize("payload", [b"\xc1", b"\x91\x92\xa7Unknown\x01", b"\x91\x92\xa6Cancel\x01", b"\x05"])
def test_an_undecodable_frame_is_an_error(pair: tuple[socket.socket, socket.socket], payload: bytes) -> None:
    pair[0].sendall(len(payload).to_bytes(4, "little") + payload)
    child: BlockingChannel[Down] = BlockingChannel(pair[1], Down)
    with pytest.raises(ChannelError, match="undecodable"):
        child.receive()


async def test_nothing_is_heard_behind_a_close(pair: tuple[socket.socket, socket.socket]) -> None:
    """Neither frames that have arrived already, nor that one was cut."""
    frame = encode([Progress("weights", 0.5)])
    parent, heard = await AsyncChannel.open(pair[0]), list[object]()

    def take(batch: object) -> None:
        heard.append(batch)
        parent.close()

    pair[1].sendall(frame * 3 + frame[:-1])
    await parent.listen(take)
    await asyncio.sleep(0.01)
    assert heard == [[Progress("weights", 0.5)]]


def test_on_another_event_loop(pair: tuple[socket.socket, socket.socket]) -> None:
    """The server's, whose transports are of their own class."""

    async def echo() -> None:
        parent = await AsyncChannel.open(pair[0])
        child: BlockingChannel[Down] = BlockingChannel(pair[1], Down)
        child.send([Progress("weights", 0.5)])
        assert await parent.receive() == [Progress("weights", 0.5)]
        parent.send([Cancel("a")])
        assert await asyncio.to_thread(child.receive) == [Cancel("a")]
        parent.close()

    uvloop.run(echo())
