"""What a model wrote comes back as the tokens that it wrote; everything else is tokenised as it stands."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from barrel_inference.config import TierSpec
from barrel_inference.engine.checkpoints import Checkpoints
from barrel_inference.kvcache.tier import Tier
from barrel_inference.types import Completion, Request, Sampling
from barrel_inference.worker.child.prompts import Prompts
from tests.engine.fakes import Clock, FakeBackend

AB = 200  # how "ab" tokenises; a model may also write it as two tokens
A, B = b"ab"
HEAD = "x" * 64  # remembered are only texts of at least a block


class MergingBackend(FakeBackend):
    """Has two ways to write "ab"."""

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        return ([1] if add_special else []) + list(text.replace(b"ab", bytes([AB])))

    def piece(self, token: int, *, special: bool) -> bytes:
        return b"ab" if token == AB else b"<s>" if token == 1 else bytes([token])

    def is_control(self, token: int) -> bool:
        return token < 32


class FakeStore(Checkpoints):
    """Knows finish keys and has a folder."""

    def __init__(self, backend: FakeBackend, tier: Tier | None) -> None:
        super().__init__(backend, "exact")
        self._tier = tier
        self.keys: dict[str, tuple[int, ...]] = {}
        self.waited_s: list[float] = []  # at most, for each key

    @property
    def store(self) -> Any:
        return SimpleNamespace(save_tier=self._tier, folder="ab" * 32) if self._tier else None

    def tokens_behind(self, key: str, wait_s: float = 0.0) -> tuple[int, ...] | None:
        self.waited_s.append(wait_s)
        return self.keys.get(key)


@pytest.fixture
def store(tmp_path: Path) -> FakeStore:
    tier = Tier(TierSpec(name="t", kind="disk", path=str(tmp_path), quota_bytes=1 << 20))
    return FakeStore(MergingBackend(Clock()), tier)


def prompts(store: FakeStore, resume_wait_s: float = 0.0, **info: Any) -> Prompts:
    return Prompts(MergingBackend(Clock(), **info), store, resume_wait_s=resume_wait_s)


def request(prompt: str, **fields: Any) -> Request:
    return Request(id="r", prompt=prompt, sampling=Sampling(), **fields)


def generate(made: Prompts, asked: Request, tokens: tuple[int, ...], text: str, **fields: Any) -> tuple[int, ...]:
    """A request's whole life; all of its tokens."""
    made.follow(asked)
    prompt = tuple(made.tokenise(asked).tokens)
    done = Completion(text=text, tokens=tokens, prompt_tokens=prompt, finish_reason="stop", **fields)
    made.completed("r", done)
    return prompt + tokens


def test_an_answer_comes_back_as_it_was_sampled(store: FakeStore) -> None:
    made = prompts(store)
    sampled = generate(made, request(HEAD), (A, B), "ab")
    again = made.tokenise(request(f"{HEAD}ab and ab")).tokens
    assert tuple(again[: len(sampled)]) == sampled
    assert again[len(sampled) :] == [*b" and ", AB]
    after_a_restart = prompts(store)
    assert after_a_restart.tokenise(request(f"{HEAD}ab and ab")).tokens == again


def test_another_tenant_and_another_way_of_reading_do_not_see_it(store: FakeStore) -> None:
    made = prompts(store)
    generate(made, request(HEAD, salt="a"), (A, B), "ab")
    assert made.tokenise(request(f"{HEAD}ab", salt="a")).tokens[-2:] == [A, B]
    for other in ({"salt": "b"}, {"salt": "a", "add_special": False}, {"salt": "a", "cache": "off"}):
        assert made.tokenise(request(f"{HEAD}ab", **other)).tokens[-1] == AB


@pytest.mark.parametrize(
    ("tokens", "text", "fields"),
    [
        ((A, B, ord("!")), "ab", {"stop_text": "!"}),
        ((A, B, 5), "ab", {}),
        ((A, B, 0xC3), "ab\ufffd", {}),
        ((), "", {}),
    ],
    ids=["cut at a stop string", "hidden control token", "broken character", "nothing"],
)
def test_a_text_that_does_not_say_all_is_not_remembered(
    store: FakeStore, tokens: tuple[int, ...], text: str, fields: dict[str, Any]
) -> None:
    made = prompts(store)
    generate(made, request(HEAD), tokens, text, **fields)
    plain = MergingBackend(Clock()).tokenize(f"{HEAD}{text}ab".encode(), add_special=True, parse_special=True)
    assert made.tokenise(request(f"{HEAD}{text}ab")).tokens == plain


def test_requests_that_do_not_write_leave_nothing(store: FakeStore) -> None:
    made = prompts(store)
    for mode in ("off", "read"):
        generate(made, request(HEAD, cache=mode), (A, B), "ab")
    assert made.tokenise(request(f"{HEAD}ab")).tokens[-1] == AB


def test_without_a_store_nothing_is_remembered() -> None:
    made = prompts(FakeStore(MergingBackend(Clock()), None))
    generate(made, request(HEAD), (A, B), "ab")
    assert made.tokenise(request(f"{HEAD}ab")).tokens[-1] == AB


def test_a_parent_key_stands_for_its_tokens(store: FakeStore) -> None:
    made = prompts(store)
    store.keys["k"] = (1, A, B)
    assert made.tokenise(request("abab", parent_key="k")).tokens == [1, A, B, AB]
    assert made.tokenise(request("other", parent_key="k")).tokens == [1, *b"other"]
    assert made.tokenise(request("abab", parent_key="unknown")).tokens == [1, AB, AB]


def test_a_parent_s_save_in_flight_is_waited_for_as_the_policy_says(store: FakeStore) -> None:
    prompts(store, resume_wait_s=0.25).tokenise(request("x", parent_key="k"))
    assert store.waited_s == [0.25]


def test_message_ends_become_token_positions_for_models_that_need_them(store: FakeStore) -> None:
    asked = request("abcab", add_special=False, boundaries=(3, 2, 4))
    assert prompts(store).tokenise(asked).boundaries == ()
    assert prompts(store, is_recurrent=True).tokenise(asked).boundaries == (1, 2, 2)
