"""Every wrong option is one ConfigError naming option, value and what is allowed; layers override one another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from barrel_inference.config import ContextOpts, LoadArguments, RuntimeConfig
from barrel_inference.errors import ConfigError
from barrel_inference.options import build, layered


@pytest.mark.parametrize(
    ("values", "option", "allowed"),
    [
        ({"context_opts": {"n_ctx": 0}}, "context_opts.n_ctx", "an integer >= 1 and <= 16777216"),
        ({"context_opts": {"n_ctx": "big"}}, "context_opts.n_ctx", "an integer"),
        ({"context_opts": {"n_ctx": True}}, "context_opts.n_ctx", "an integer"),
        ({"context_opts": {"n_ctx": 1.5}}, "context_opts.n_ctx", "an integer"),
        ({"context_opts": {"n_seq_max": 1000}}, "context_opts.n_seq_max", "<= 255"),
        ({"context_opts": {"flash_attn": "on"}}, "context_opts.flash_attn", "true or false or one of 'auto'"),
        ({"context_opts": {"type_k": "q3"}}, "context_opts.type_k", "'q8_0'"),
        ({"model_opts": {"split_mode": "diagonal"}}, "model_opts.split_mode", "one of 'layer', 'none', 'row'"),
        ({"model_opts": {"tensor_split": [0.1] * 17}}, "model_opts.tensor_split", "at most 16"),
        ({"model_opts": {"tensor_split": [float("nan")]}}, "model_opts.tensor_split", "a number >= 0"),
        ({"model_opts": {"use_mmap": 1}}, "model_opts.use_mmap", "true or false"),
        ({"tier": "tape"}, "tier", "'disk', 'ram', 'ram_file'"),
        ({"policy": {"min_tokens": -1}}, "policy.min_tokens", ">= 0"),
        ({"lora": ["file"]}, "lora", "a list of (text, a number"),
        ({"lora": [("file", float("nan"))]}, "lora", "a number >= -1000000"),
        ({"model_opts": {"tensor_split": [float("inf")]}}, "model_opts.tensor_split", "a number >= 0"),
        ({"context_opts": {"rope_freq_base": float("inf")}}, "context_opts.rope_freq_base", "a number >= 0"),
        ({"context_opts": {"yarn_orig_ctx": 2**32}}, "context_opts.yarn_orig_ctx", "< 2147483648"),
        ({"quant_type": "\udc80"}, "quant_type", "text"),
        ({"stub": {"delay": object()}}, "stub", "a table"),
        ({"stub": 3}, "stub", "a table"),
    ],
)
def test_a_wrong_value_names_option_value_and_choices(values: dict[str, Any], option: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(LoadArguments(), values)
    assert caught.value.details["option"] == option
    assert caught.value.details["value"] in str(caught.value)
    assert allowed in caught.value.details["allowed"]
    assert option in str(caught.value)


def test_a_group_must_be_a_table() -> None:
    with pytest.raises(ConfigError, match="context_opts=7: expected a table of options"):
        build(LoadArguments(), {"context_opts": 7})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"modle_path": "x"}, "unknown option 'modle_path'; did you mean 'model_path'"),
        ({"context_opts": {"nctx": 1}}, "unknown option 'context_opts.nctx'; did you mean 'n_ctx'"),
        ({"policy": {"zzz": 1}}, "unknown option 'policy.zzz'; known: boundary_align_tokens, "),
        ({"context_opts": {1: 2}}, "unknown option 'context_opts.1'; known: decode_budget_ms, "),
    ],
)
def test_an_unknown_key_names_the_nearest(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(LoadArguments(), values)
    assert message in str(caught.value)


def test_what_is_wrong_is_said_once_and_where_in_a_list_it_is() -> None:
    with pytest.raises(ConfigError, match=r"n_ctx=0 is not allowed: expected an integer >= 1 and <= 16777216$"):
        build(LoadArguments(), {"context_opts": {"n_ctx": 0}})
    with pytest.raises(ConfigError, match=r"at `\$\[1\]`"):
        build(LoadArguments(), {"model_opts": {"tensor_split": [1, "x"]}})


def test_groups_are_merged_over_the_base_and_may_be_given_as_values() -> None:
    base = LoadArguments(context_opts=ContextOpts(n_ctx=4096, n_batch=64))
    assert build(base, {"context_opts": {"n_ctx": 8192}}).context_opts == ContextOpts(n_ctx=8192, n_batch=64)
    assert build(base, {"context_opts": ContextOpts(n_ctx=1)}).context_opts == ContextOpts(n_ctx=1)


def test_defaults_file_environment_flags_in_that_order(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        'exact = "cold"\nready_timeout_s = 5\npressure_low = 0.1\n[context_opts]\nn_ctx = 1000\nn_batch = 7\n'
    )
    environ = {
        "BARREL_INFERENCE_READY_TIMEOUT_S": "6",
        "BARREL_INFERENCE_CONTEXT_OPTS_N_CTX": "2000",
        "BARREL_INFERENCE_CONTEXT_OPTS_EMBEDDINGS": "true",
        "BARREL_INFERENCE_TIERS": '[{"name": "d", "kind": "disk", "path": "/d", "quota_bytes": 5}]',
        "BARREL_INFERENCE_HOST": "elsewhere",
        "UNRELATED": "1",
    }
    config = layered(RuntimeConfig(), file=file, environ=environ, flags={"ready_timeout_s": 7.0, "exact": None})
    assert config.exact == "cold"
    assert config.ready_timeout_s == 7.0
    assert config.pressure_low == 0.1
    assert config.pressure_high == RuntimeConfig().pressure_high
    assert (config.context_opts.n_ctx, config.context_opts.n_batch, config.context_opts.embeddings) == (2000, 7, True)
    assert [tier.name for tier in config.tiers] == ["d"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("BARREL_INFERENCE_EXCAT", "cold", "did you mean 'BARREL_INFERENCE_EXACT'"),
        ("BARREL_INFERENCE_EXACT", "warm", "exact='warm' is not allowed: expected one of 'cold', 'live'"),
        ("BARREL_INFERENCE_TIERS", "[", "tiers='[' is not allowed"),
        ("BARREL_INFERENCE_READY_TIMEOUT_S", "soon", "ready_timeout_s='soon'"),
    ],
)
def test_a_wrong_variable_is_an_error(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        layered(RuntimeConfig(), file=None, environ={name: value}, flags={})
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["SERVER_API_KEYS", "REGISTRY_HF_TOKEN", "REGISTRY_REGISTRY_CREDENTIALS"])
def test_a_wrong_secret_is_not_shown(name: str) -> None:
    """The error of a service that does not start stands in a log that others read."""
    with pytest.raises(ConfigError) as caught:
        layered(RuntimeConfig(), file=None, environ={f"BARREL_INFERENCE_{name}": '["secret", 1]'}, flags={})
    assert "***" in str(caught.value)
    assert "secret" not in str(caught.value.to_dict())


@pytest.mark.parametrize("content", [b"exact = ", b"\xff", b"excat = 'live'"])
def test_a_wrong_file_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        layered(RuntimeConfig(), file=file, environ={}, flags={})
    assert "config.toml" in str(caught.value)
