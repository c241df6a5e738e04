"""Ollama's options to ours: types as Ollama checks them, load options apart from sampling."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barrel_inference.aio.params import parse
from barrel_inference.config import ContextOpts, ModelOpts
from barrel_inference.errors import ConfigError, InvalidRequestError
from barrel_inference.options import build
from barrel_inference.registry.modelfile.parameters import PARAMETERS
from barrel_inference.server.models.parameters import merge, merged, translate


def test_each_goes_where_it_belongs() -> None:
    found = translate(
        {"temperature": 0, "num_ctx": 8192, "num_thread": 4, "num_gpu": 99, "stop": "x", "num_predict": 7, "seed": 3}
    )
    assert found.request == {"temperature": 0.0, "stop": ["x"], "max_tokens": 7, "seed": 3}
    assert found.load == {"context_opts": {"n_threads": 4}, "model_opts": {"n_gpu_layers": 99}}
    assert found.n_ctx == 8192


def test_values_that_leave_the_choice_to_us() -> None:
    found = translate(
        {"num_predict": -1, "seed": -1, "num_thread": 0, "num_gpu": -1, "num_batch": 0, "num_ctx": 0, "top_k": None}
    )
    assert found == translate({})


def test_floats_given_for_integers_are_cut() -> None:
    assert translate({"top_k": 40.9, "num_ctx": 4096.5}).request == {"top_k": 40}


@pytest.mark.parametrize(("wanted", "given"), [(-5, 4), (1, 4), (4, 4), (5, 5), (0, None)])
def test_no_context_is_too_small_to_load(wanted: int, given: int | None) -> None:
    assert translate({"num_ctx": wanted}).n_ctx == given


def test_unknown_names_are_reported() -> None:
    assert translate({"tfs_z": 1, "wibble": 2}).ignored == ("tfs_z", "wibble")


def test_what_the_server_says_itself_is_nobody_elses() -> None:
    options = {"n": 2, "boundaries": [1], "trace": "x", "add_special": False, "shift_keep": 3}
    found = translate(options)
    assert (found.request, set(found.ignored)) == ({}, set(options))


@pytest.mark.parametrize(
    ("option", "value", "kind"),
    [
        ("num_ctx", "4096", "integer"),
        ("num_ctx", True, "integer"),
        ("seed", float("nan"), "integer"),
        ("temperature", "hot", "float32"),
        ("use_mmap", 1, "boolean"),
        ("stop", 5, "an array of strings"),
        ("stop", ["a", 5], "an array of strings"),
    ],
)
def test_wrong_types(option: str, value: Any, kind: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        translate({option: value})
    assert caught.value.message == f'option "{option}" must be of type {kind}'


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("num_thread", -3, "at least 0"),
        ("num_thread", 513, "at most 512"),
        ("num_batch", -3, "at least 1"),
        ("num_batch", 1 << 21, "at most 1048576"),
        ("num_gpu", -2, "at least -1"),
        ("main_gpu", 16, "at most 15"),
        ("weight_residency", "zzz", "one of eager, lazy, pinned, lazy_then_pin_resident"),
        ("weight_residency", ["eager"], "one of eager, lazy, pinned, lazy_then_pin_resident"),
    ],
)
def test_load_options_out_of_bounds(option: str, value: Any, wanted: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        translate({option: value})
    assert (caught.value.message, caught.value.details) == (f'option "{option}" must be {wanted}', {"option": option})


@pytest.mark.parametrize("name", sorted(name for name, known in PARAMETERS.items() if known.loader))
def test_their_bounds_are_the_loaders_own(name: str) -> None:
    """What passes here is loaded, and what does not would not be."""
    _, loader, least, most = PARAMETERS[name]
    if least is None or most is None or loader is None:
        return
    group: ModelOpts | ContextOpts = ContextOpts() if loader in ContextOpts.__struct_fields__ else ModelOpts()
    lowest = least if (name, least) != ("num_thread", 0) else 1  # 0 leaves it to us
    for inside, outside in ((lowest, lowest - 1), (most, most + 1)):
        assert getattr(build(group, {loader: inside}), loader) == inside
        with pytest.raises(ConfigError):
            build(group, {loader: outside})


def test_biases_are_of_token_ids_which_are_text_in_json() -> None:
    assert translate({"logit_bias": {"7": -100, "8": 1.5}}).request == {"logit_bias": {7: -100.0, 8: 1.5}}
    for wrong in ({"a": 1}, {"7": "much"}, [7], "7"):
        with pytest.raises(InvalidRequestError, match="logit_bias maps token ids to numbers"):
            translate({"logit_bias": wrong})


def test_the_second_wins_option_by_option() -> None:
    first = translate({"temperature": 1, "top_k": 5, "num_thread": 1, "num_ctx": 100})
    second = translate({"top_k": 9, "num_batch": 64})
    both = merged(first, second)
    assert both.request == {"temperature": 1.0, "top_k": 9}
    assert both.load == {"context_opts": {"n_threads": 1, "n_batch": 64}}
    assert both.n_ctx == 100


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure
@given(
    st.dictionaries(
        st.sampled_from(["temperature", "top_k", "num_ctx", "stop", "seed", "num_predict", "use_mmap", "min_p"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.text(max_size=3)),
    )
)
def test_anything_is_either_translated_or_refused(options: dict[str, Any]) -> None:
    try:
        found = translate(options)
        parse(found.request)
    except InvalidRequestError:
        return


def test_merge_does_not_change_its_arguments() -> None:
    first, second = {"a": {"x": 1}}, {"a": {"y": 2}, "b": 3}
    assert merge(first, second) == {"a": {"x": 1, "y": 2}, "b": 3}
    assert (first, second) == ({"a": {"x": 1}}, {"a": {"y": 2}, "b": 3})
