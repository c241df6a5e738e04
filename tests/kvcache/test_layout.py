"""Slicing and assembling states: what goes in comes out, for every layout and any cell order."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barrel_inference.engine.backend import Slice
from barrel_inference.kvcache.layout import Assembly, Cells, Layout, LayoutError, SectionTarget, detect
from tests.kvcache.fake_backend import FakeBackend


def blob_of(backend: FakeBackend, seq: int) -> bytes:
    out = memoryview(bytearray(backend.state_size(seq)))
    backend.state_read(seq, out)
    return bytes(out)


def filled(kind: str, n: int, *, n_swa: int = 40, v_trans: bool = False, holes: bool = False) -> FakeBackend:
    backend = FakeBackend(kind, n_swa=n_swa, v_trans=v_trans)
    tokens, cuts = tuple(range(100, 100 + n)), (n // 4, n // 2, n) if holes else (n,)
    start = 0
    for cut in cuts:
        if cut > start:
            backend.decode([Slice(0, start, tokens[start:cut], False)], None)
        start = cut
        if cut == n // 4:  # another sequence's cells lie between; when they are freed, later positions get them
            backend.decode([Slice(1, 0, tuple(range(9)), False)], None)
        else:
            backend.seq_remove(1, 0, -1)
    return backend


def held(backend: FakeBackend, seq: int) -> list[dict[int, tuple[bytes, ...]]]:
    """The rows by position, as a state holds them."""
    return [{cell.pos: cell.rows for cell in cache.kept(seq)} for cache in (backend.base, backend.window) if cache]


def rebuild(layout: Layout, blob: bytes, cuts: list[int], n: int) -> bytes:
    """Cut every section at ``cuts`` and put it together from the pieces."""
    parsed = layout.parse(memoryview(blob))
    window_first = parsed.window.span()[0] if parsed.window else 0
    state = parsed.state if parsed.state is not None else memoryview(b"")
    assembly = Assembly(layout, n, window_first, len(state))
    out = memoryview(bytearray(assembly.size))
    assembly.write_headers(out)
    for cells, target in ((parsed.base, assembly.base), (parsed.window, assembly.window)):
        if cells is not None and target is not None:
            _move(cells, target, out, cuts)
    assembly.state(out)[:] = state
    return bytes(out)


def _move(cells: Cells, target: SectionTarget, out: memoryview, cuts: list[int]) -> None:
    first, last = cells.span()
    edges = [first, *sorted(cut for cut in set(cuts) if first < cut < last), last]
    for start, stop in itertools.pairwise(edges):
        payload = memoryview(b"".join(cells.rows(start, stop)))
        if target.is_contiguous:
            at = 0
            for place in target.places(out, start, stop):
                place[:] = payload[at : at + len(place)]
                at += len(place)
        else:
            target.put(out, payload, (start, stop), start, stop)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("plain", "plain"),
        ("swa", "swa"),
        ("recurrent", "recurrent"),
        ("hybrid", "hybrid"),
        ("hybrid_swa", "hybrid"),
        ("whole", "whole"),
    ],
)
@pytest.mark.parametrize("v_trans", [False, True])
def test_each_layout_is_recognised(kind: str, expected: str, v_trans: bool) -> None:
    layout = detect(memoryview(blob_of(filled(kind, 3, v_trans=v_trans), 0)), n_swa=40 if "swa" in kind else 0)
    assert layout.kind == expected
    assert (layout.window is not None) == ("swa" in kind)
    assert layout.has_state == (kind not in ("plain", "swa"))


@settings(deadline=None, max_examples=40)
@given(
    kind=st.sampled_from(["plain", "swa", "recurrent", "hybrid", "hybrid_swa", "whole"]),
    v_trans=st.booleans(),
    holes=st.booleans(),
    n=st.integers(1, 90),
    cuts=st.lists(st.integers(0, 90), max_size=4),
)
def test_pieces_make_the_same_state(kind: str, v_trans: bool, holes: bool, n: int, cuts: list[int]) -> None:
    backend = filled(kind, n, v_trans=v_trans, holes=holes)
    blob = blob_of(backend, 0)
    layout = detect(memoryview(blob), n_swa=backend.info.n_swa)
    again, rows = rebuild(layout, blob, cuts, n), held(backend, 0)
    if not holes:
        assert again == blob
    assert backend.state_write(0, memoryview(again))
    assert held(backend, 0) == rows
    assert rebuild(layout, blob_of(backend, 0), [], n) == again


@pytest.mark.parametrize("v_trans", [False, True])
def test_cells_need_not_lie_in_the_order_of_their_positions(v_trans: bool) -> None:
    backend = filled("plain", 80, v_trans=v_trans, holes=True)
    cells = detect(memoryview(blob_of(backend, 0)), n_swa=0)
    base = cells.parse(memoryview(blob_of(backend, 0))).base
    assert base is not None
    assert base.positions.tolist() == [*range(20), *range(40, 49), *range(20, 40), *range(49, 80)]
    other = filled("plain", 80, v_trans=v_trans)
    straight = cells.parse(memoryview(blob_of(other, 0))).base
    assert straight is not None
    for start, stop in ((0, 80), (0, 64), (18, 44), (45, 52), (60, 61)):
        assert b"".join(base.rows(start, stop)) == b"".join(straight.rows(start, stop))


@pytest.mark.parametrize("v_trans", [False, True])
def test_a_part_of_a_payload_can_be_used(v_trans: bool) -> None:
    backend = filled("plain", 40, v_trans=v_trans)
    layout = detect(memoryview(blob_of(backend, 0)), n_swa=0)
    payload = memoryview(b"".join(layout.parse(memoryview(blob_of(backend, 0))).base.rows(10, 40)))
    whole = layout.parse(memoryview(blob_of(backend, 0))).base
    assert whole is not None
    assembly = Assembly(layout, 25)
    out = memoryview(bytearray(assembly.size))
    assembly.write_headers(out)
    assembly.base.put(out, memoryview(b"".join(whole.rows(0, 10))), (0, 10), 0, 10)
    assembly.base.put(out, payload, (10, 40), 10, 25)
    backend.seq_remove(0, 25, -1)
    assert bytes(out) == blob_of(backend, 0)


def test_rows_that_are_not_there_are_refused() -> None:
    blob = blob_of(filled("swa", 80, n_swa=16), 0)
    layout = detect(memoryview(blob), n_swa=16)
    window = layout.parse(memoryview(blob)).window
    assert window is not None
    assert window.span() == (64, 80)
    with pytest.raises(LayoutError):
        window.rows(60, 80)


def test_another_shape_is_refused() -> None:
    layout = detect(memoryview(blob_of(filled("plain", 3), 0)), n_swa=0)
    with pytest.raises(LayoutError):
        layout.parse(memoryview(blob_of(filled("plain", 3, v_trans=True), 0)))


@pytest.mark.parametrize("kind", ["plain", "swa"])
def test_a_state_that_goes_on_is_refused(kind: str) -> None:
    """By a layout that knows of no more; it may be that of a model with a further section."""
    blob = blob_of(filled(kind, 3), 0)
    layout = detect(memoryview(blob), n_swa=40)
    for more in (b"\0", bytes(64)):
        with pytest.raises(LayoutError, match="left over"):
            layout.parse(memoryview(blob + more))
    assert detect(memoryview(blob + b"\0"), n_swa=40).kind == "whole"


def test_a_state_of_several_streams_is_refused() -> None:
    blob = bytearray(blob_of(filled("plain", 3), 0))
    layout = detect(memoryview(bytes(blob)), n_swa=0)
    blob[8] = 2  # behind magic and sequence
    with pytest.raises(LayoutError, match="2 streams"):
        layout.parse(memoryview(blob))
    assert detect(memoryview(blob), n_swa=0).kind == "whole"


def test_damaged_states_never_crash() -> None:
    rng = random.Random(1)
    for kind in ("plain", "swa", "hybrid", "hybrid_swa", "recurrent"):
        blob = bytearray(blob_of(filled(kind, 5), 0))
        layout = detect(memoryview(bytes(blob)), n_swa=40)
        for _ in range(300):
            bad = bytearray(blob)
            for _ in range(rng.randrange(1, 4)):
                bad[rng.randrange(len(bad))] = rng.randrange(256)
            bad = bad[: rng.randrange(len(bad))] if rng.random() < 0.5 else bad
            detect(memoryview(bytes(bad)), n_swa=40)
            try:
                layout.parse(memoryview(bytes(bad)))
            except LayoutError:
                continue
