"""What may be said in a request, and the one typed error for everything else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barrel_inference.aio.params import RequestOptions, requests
from barrel_inference.errors import InvalidRequestError
from barrel_inference.types import Constraint, Request, Sampling


def one(**options: Any) -> Request:
    (request,) = requests("hi", options)
    return request


def test_options_reach_the_request_and_its_sampling() -> None:
    request = one(temperature=0, seed=5, max_tokens=7, stop="x", logprobs=True, cache="off", timeout_s=2)
    assert request.sampling == Sampling(temperature=0, seed=5)
    assert (request.max_tokens, request.stop, request.logprobs, request.cache) == (7, ("x",), True, "off")
    assert one(stop=None).stop == ()
    assert one(stop=["a", "b"]).stop == ("a", "b")


def test_asking_for_others_asks_for_logprobs() -> None:
    assert (one(top_logprobs=2).logprobs, one(top_logprobs=2).top_logprobs) == (True, 2)
    assert not one(top_logprobs=0).logprobs


def test_every_request_option_is_passed_on() -> None:
    handled = {"n", "json_schema", "regex", "grammar", "choices", "start_after", "outside", "trace"}
    assert set(RequestOptions.__struct_fields__) - handled <= set(Request.__struct_fields__)


def test_an_id_begins_as_it_is_wished_and_is_unique() -> None:
    first, second = one(trace="mine"), one(trace="mine")
    assert first.id.startswith("mine_") and second.id.startswith("mine_") and first.id != second.id


def test_n_requests_differ_in_id_and_seed_only() -> None:
    first, second = requests("hi", {"n": 2, "seed": 5})
    assert (first.sampling.seed, second.sampling.seed) == (5, 4)
    assert first.id.endswith(".0") and second.id == first.id[:-1] + "1"
    sampling = msgspec.structs.replace(second.sampling, seed=5)
    assert msgspec.structs.replace(second, id=first.id, sampling=sampling) == first


def test_a_seed_is_drawn_and_ids_are_unique() -> None:
    seeds = {one().sampling.seed for _ in range(20)}
    assert None not in seeds and len(seeds) == 20
    assert len({one().id for _ in range(20)}) == 20


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63), 0, -1])
def test_extreme_seeds_stay_in_range_for_every_n(seed: int) -> None:
    for request in requests("hi", {"n": 128, "seed": seed}):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Request) == request


def test_constraints() -> None:
    assert one(json_schema={"type": "object"}).constraint == Constraint(json_schema='{"type":"object"}')
    assert one(json_schema="{}").constraint == Constraint(json_schema="{}")
    assert one(choices=["a", "b"], start_after="</think>").constraint == Constraint(
        choices=("a", "b"), start_after="</think>"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1}, "unknown option 'temprature'; did you mean 'temperature'"),
        ({"temperature": -1}, "temperature=-1 is not allowed: expected a number >= 0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"top_k": 1.5}, "top_k=1.5"),
        ({"repeat_penalty": 0}, "repeat_penalty=0"),
        ({"mirostat": 3}, "one of 0, 1, 2"),
        ({"max_tokens": -1}, "max_tokens=-1"),
        ({"max_tokens": "many"}, "max_tokens='many'"),
        ({"stop": [""]}, "stop=[''] is not allowed: expected a list of text, at least 1 long"),
        ({"stop": 3}, "stop=3"),
        ({"n": 0}, "n=0"),
        ({"seed": 2**63}, "seed=9223372036854775808"),
        ({"cache": "maybe"}, "cache='maybe'"),
        ({"on_full": "wait"}, "on_full='wait'"),
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"choices": []}, "choices=[] is not allowed: expected a list of text, at least 1 or None"),
        ({"session": ""}, "expected text, at least 1 long or None"),
        ({"trace": "x" * 129}, "expected text, at least 1 long and at most 128 long"),
        ({"dry_breakers": ["x" * 41]}, "expected a list of text, at most 40 long, at most 16"),
        ({"json_schema": {"a": {1, 2}}, "seed": 1}, None),
        ({"json_schema": {"a": object()}}, "json_schema is not JSON"),
        ({"regex": "a", "grammar": "b"}, "at most one of regex, grammar"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
    ],
)
def test_what_is_not_allowed_is_one_clear_error(options: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert one(**options).constraint is not None  # a set is written as a list
        return
    with pytest.raises(InvalidRequestError) as caught:
        one(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize("prompt", ["a\ud800b", b"bytes", [1, -1], [1.5], [True], ["a"], [2**31], None, 5])
def test_a_prompt_is_text_or_token_ids(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError):
        requests(prompt, {})


def test_good_prompts_pass_unchanged() -> None:
    assert requests("NUL \0 is a character", {})[0].prompt == "NUL \0 is a character"
    assert requests([], {})[0].prompt == ()  # the worker says that it is empty
    assert requests(range(3), {})[0].prompt == (0, 1, 2)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure
@given(
    st.dictionaries(
        st.sampled_from(sorted({*RequestOptions.__struct_fields__, *Sampling.__struct_fields__})),
        st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.booleans(), st.lists(st.text())),
        max_size=3,
    )
)
def test_whatever_is_accepted_can_cross_the_border(options: dict[str, Any]) -> None:
    try:
        made = requests("hi", options)
    except InvalidRequestError:
        return
    for request in made:
        try:
            encoded = msgspec.msgpack.encode(request)
        except UnicodeEncodeError:
            return  # refused when it is sent
        assert msgspec.msgpack.decode(encoded, type=Request) == request
