"""What is remembered of earlier turns, and how it is known again."""

from __future__ import annotations

from typing import Any

from barrel_inference.chat.memory import Memory, Remembered


def say(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


TALK = [say("user", "one"), say("assistant", "two"), say("user", "three")]


def test_a_conversation_that_goes_on_is_known_again() -> None:
    memory = Memory()
    memory.remember(["tools"], TALK[:2], "prompt+answer")
    assert memory.recall(["tools"], TALK) == Remembered(2, "prompt+answer")
    assert memory.recall(["tools"], [*TALK, say("assistant", "x"), say("user", "y")]) == Remembered(2, "prompt+answer")


def test_the_longest_beginning_counts() -> None:
    memory = Memory()
    longer = [*TALK, say("assistant", "four"), say("user", "five")]
    memory.remember([], TALK[:2], "short")
    memory.remember([], longer[:4], "long")
    assert memory.recall([], longer) == Remembered(4, "long")


def test_anything_else_before_it_makes_it_another_conversation() -> None:
    memory = Memory()
    memory.remember(["tools"], TALK[:2], "text")
    assert memory.recall(["others"], TALK) is None
    assert memory.recall(["tools"], [say("user", "other"), *TALK[1:]]) is None
    assert memory.recall(["tools"], [say("system", "S"), *TALK]) is None


def test_the_last_message_is_never_an_answer_to_replay() -> None:
    memory = Memory()
    memory.remember([], TALK[:2], "text")
    assert memory.recall([], TALK[:2]) is None


def test_clients_may_trim_answers_and_spell_calls_in_their_way() -> None:
    memory = Memory()
    memory.remember([], [TALK[0], say("assistant", "two \n")], "text")
    assert memory.recall([], TALK) is not None
    calls = [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    spelled = [{"id": "call_1", "function": {"name": "f", "arguments": '{"a":1}'}}]
    memory.remember([], [TALK[0], say("assistant", "", tool_calls=calls)], "with call")
    after = [TALK[0], say("assistant", None, tool_calls=spelled), say("tool", "r", tool_call_id="call_1")]
    assert memory.recall([], after) == Remembered(2, "with call")


def test_clients_may_leave_out_the_ids_of_calls() -> None:
    """As Ollama's own do."""
    memory = Memory()
    calls = [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1, "b": 2}'}}]
    memory.remember([], [TALK[0], say("assistant", "so", tool_calls=calls)], "with call")
    for arguments, known in (({"b": 2, "a": 1}, True), ({"a": 2, "b": 2}, False)):
        spelled = [{"id": "", "type": "function", "function": {"name": "f", "arguments": arguments}}]
        after = [TALK[0], say("assistant", "so", tool_calls=spelled), say("tool", "r")]
        assert (memory.recall([], after) is not None) == known


def test_what_a_user_says_counts_to_the_letter() -> None:
    memory = Memory()
    memory.remember([], [say("user", "  indented"), say("assistant", "two")], "text")
    assert memory.recall([], [say("user", "indented"), *TALK[1:]]) is None


def test_the_oldest_go_when_there_is_too_much() -> None:
    memory = Memory(max_chars=25)
    for name in ("a", "b", "c"):
        memory.remember([], [say("user", name), say("assistant", "x")], name * 10)
    talks = {name: [say("user", name), say("assistant", "x"), say("user", "y")] for name in ("a", "b", "c")}
    assert [name for name, talk in talks.items() if memory.recall([], talk)] == ["b", "c"]


class Drawer:
    """A shelf in memory."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def put(self, name: str, data: bytes) -> bool:
        self.files[name] = data
        return True

    def get(self, name: str) -> bytes | None:
        return self.files.get(name)


def test_a_shelf_outlives_the_memory() -> None:
    shelf = Drawer()
    turn = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    Memory(shelf=shelf, of="one").remember([], turn, "<hi>\ud800 hello")
    again = Memory(shelf=shelf, of="one")
    more = [*turn, {"role": "user", "content": "more"}]
    assert again.recall([], more) == (2, "<hi>\ud800 hello")
    shelf.files.clear()
    assert again.recall([], more) == (2, "<hi>\ud800 hello")
    assert again.recall(["another setting"], more) is None


def test_another_templates_texts_on_the_shelf_are_not_taken() -> None:
    shelf = Drawer()
    turn = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    Memory(shelf=shelf, of="one").remember([], turn, "text")
    assert Memory(shelf=shelf, of="two").recall([], [*turn, turn[0]]) is None


def test_what_must_not_be_kept_is_on_no_shelf() -> None:
    shelf = Drawer()
    memory = Memory(shelf=shelf)
    turn = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    memory.remember([], turn, "text", on_shelf=False)
    assert not shelf.files
    assert memory.recall([], [*turn, turn[0]]) == (2, "text")
