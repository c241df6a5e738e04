"""Whose turn it is: order within a client, turns between clients, room in a full queue."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrel_inference.server.models.turns import Turns


def filled(*items: str) -> Turns[str]:
    """An item's client is its first letter."""
    turns: Turns[str] = Turns()
    for item in items:
        turns.push(item[0], item)
    return turns


def drained(turns: Turns[str]) -> list[str]:
    return [turns.pop() for _ in range(len(turns))]


def test_one_client_is_served_in_order() -> None:
    assert drained(filled("a1", "a2", "a3")) == ["a1", "a2", "a3"]


def test_clients_take_turns() -> None:
    assert drained(filled("a1", "a2", "a3", "b1", "c1", "c2")) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_who_has_had_a_turn_and_comes_again_is_behind_the_others() -> None:
    turns = filled("a1", "b1", "b2")
    assert turns.pop() == "a1"
    turns.push("a", "a2")
    assert drained(turns) == ["b1", "a2", "b2"]


def test_who_leaves_is_no_obstacle() -> None:
    turns = filled("a1", "a2", "b1")
    turns.remove("a", "a1")
    turns.remove("b", "b1")
    turns.remove("b", "b1")
    assert drained(turns) == ["a2"]
    with pytest.raises(IndexError):
        turns.pop()


def test_room_is_made_by_who_has_most() -> None:
    turns = filled("a1", "a2", "a3", "b1")
    assert turns.bump("c") == "a3"
    assert turns.bump("b") is None, "it would have as many then"
    assert turns.bump("c") == "a2"
    assert turns.bump("c") is None
    assert drained(turns) == ["a1", "b1"]
    assert turns.bump("a") is None


@given(st.lists(st.sampled_from("abcd")), st.data())
def test_nobody_waits_for_more_than_one_turn_of_each_other(clients: list[str], data: st.DataObject) -> None:
    turns: Turns[str] = Turns()
    n_pushed: Counter[str] = Counter()
    for client in clients:
        n_pushed[client] += 1
        turns.push(client, f"{client}{n_pushed[client]}")
        if data.draw(st.booleans()) and len(turns) > 2:
            turns.pop()
    waiting = len(turns)
    order = drained(turns)
    assert len(order) == waiting
    for client in set(clients):
        own = [item for item in order if item[0] == client]
        assert own == sorted(own, key=lambda item: int(item[1:])), "first come, first served"
        others = Counter(item[0] for item in order[: order.index(own[0])]) if own else Counter()
        assert all(count == 1 for count in others.values())
