"""Loading: options reach llama.cpp, facts are read back, and what cannot be loaded is a typed error with the reason."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from barrel_inference.config import ContextOpts, LoadOptions, ModelOpts
from barrel_inference.engine.backend import DecodeStatus, Slice
from barrel_inference.engine.llama import LlamaBackend, features
from barrel_inference.engine.llama.binding import build, lib
from barrel_inference.engine.llama.context import context_params, default_threads
from barrel_inference.engine.llama.facts import offloaded
from barrel_inference.errors import ConfigError, InvalidModelError
from tests.engine.llama.opened import feed, opened
from tests.support.models import smollm2
from tests.support.tiny_files import split_bert, tiny_bert
from tests.support.tiny_models import N_VOCAB, WINDOW, Arch, tiny_model

pytestmark = pytest.mark.model


def load(path: Path | None, **model_opts: Any) -> LlamaBackend:
    options = LoadOptions(
        id="m",
        model_path=None if path is None else str(path),
        model_opts=ModelOpts(**model_opts),
        context_opts=ContextOpts(n_ctx=256),
    )
    return LlamaBackend(options)


def test_what_is_no_model_is_refused_with_llama_s_reason(tmp_path: Path) -> None:
    text, empty, cut = tmp_path / "text.gguf", tmp_path / "empty.gguf", tmp_path / "cut.gguf"
    text.write_text("no model " * 100)
    empty.touch()
    cut.write_bytes(tiny_bert(tmp_path / "bert.gguf").read_bytes()[:-5000])
    for path, reason in [
        (tmp_path / "absent.gguf", "No such file"),
        (tmp_path, "directory"),
        (text, "magic"),
        (empty, "empty"),
        (cut, "bounds|corrupted|incomplete"),
    ]:
        with pytest.raises(InvalidModelError, match=reason):
            load(path)


def test_a_path_is_needed() -> None:
    with pytest.raises(ConfigError, match="model_path"):
        load(None)


@pytest.mark.parametrize(
    ("arch", "n_swa", "is_recurrent", "is_hybrid"),
    [
        ("llama", 0, False, False),
        ("gemma3", WINDOW, False, False),
        ("mamba", 0, True, False),
        ("jamba", 0, False, True),
        ("lfm2", 0, False, True),
    ],
)
def test_the_kind_of_memory_is_read(arch: Arch, n_swa: int, is_recurrent: bool, is_hybrid: bool) -> None:
    with opened(tiny_model(arch), n_seq_max=3, n_batch=32) as backend:
        info = backend.info
        assert (info.n_swa, info.is_recurrent, info.is_hybrid) == (n_swa, is_recurrent, is_hybrid)
        assert (info.architecture, info.n_ctx, info.n_seq_max, info.n_batch) == (arch, 256, 3, 32)
        assert (info.n_vocab, info.has_memory, info.warnings) == (N_VOCAB, True, ())


def test_facts_of_a_real_model() -> None:
    backend = load(smollm2())
    info = backend.info
    assert (info.architecture, info.quant_type, info.quant_bits) == ("llama", "q4_1", 4.0)
    assert (info.n_ctx_train, info.n_layer, info.n_embd, info.n_vocab) == (8192, 30, 576, 49152)
    assert 130e6 < info.n_params < 140e6 and 80e6 < info.size_bytes < 110e6
    assert (info.bos_token, info.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert info.chat_template is not None and "<|im_start|>" in info.chat_template
    assert "0.3.36" in info.build and "rope.freq_base" in info.rope
    backend.close()


def test_a_context_larger_than_trained_on_is_a_warning() -> None:
    with opened(tiny_model("llama"), n_ctx=8192) as backend:
        assert "8192" in backend.info.warnings[0] and "4096" in backend.info.warnings[0]


@pytest.mark.parametrize("type_kv", ["f32", "bf16", "q4_0", "q5_0", "q5_1", "q8_0"])
def test_every_type_of_kv_decodes(type_kv: str) -> None:
    with opened(tiny_model("llama"), type_k=type_kv, type_v=type_kv) as backend:
        assert backend.info.flash_attn
        feed(backend, 0, 0, 70)


@pytest.mark.parametrize("type_v", ["q4_0", "q5_0", "q5_1", "q8_0"])
def test_quantised_values_need_flash_attention(type_v: str) -> None:
    with pytest.raises(ConfigError, match="flash"), opened(tiny_model("llama"), type_v=type_v, flash_attn=False):
        pass


@pytest.mark.parametrize(("asked", "is_on"), [("auto", True), (True, True), (False, False)])
def test_flash_attention_is_resolved(asked: bool | str, is_on: bool) -> None:
    with opened(tiny_model("llama"), flash_attn=asked) as backend:
        assert backend.info.flash_attn is is_on


def test_the_build_tells_whether_quantised_rows_are_rotated() -> None:
    names = {build({}), build({"LLAMA_ATTN_ROT_DISABLE": "1"}), build({"LLAMA_ATTN_ROT_DISABLE": "0"})}
    assert len(names) == 3
    assert load(tiny_model("llama")).info.build in names


def test_rope_options_change_rows_and_name() -> None:
    seen = set()
    yarn = {"rope_scaling": "yarn"}
    overrides = [{}, {"rope_freq_base": 500.0}, {"rope_freq_scale": 0.5}, yarn, {**yarn, "yarn_orig_ctx": 128}]
    for options in overrides:
        with opened(tiny_model("llama"), **options) as backend:
            seen.add(backend.info.rope)
            feed(backend, 0, 0, 60)
    assert len(seen) == len(overrides)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, {"n_gpu_layers": 0, "split_mode": 1, "main_gpu": 0, "load_mode": 1, "vocab_only": False}),
        ({"use_mmap": False}, {"load_mode": 0}),
        ({"use_mmap": False, "use_mlock": True}, {"load_mode": 2}),
        ({"use_mlock": True}, {"load_mode": 3}),
        ({"weight_residency": "lazy_then_pin_resident"}, {"load_mode": 1}),
        ({"weight_residency": "pinned"}, {"load_mode": 3}),
        ({"n_gpu_layers": 99}, {"n_gpu_layers": 99}),
        ({"n_gpu_layers": -1}, {"n_gpu_layers": -1}),
        ({"split_mode": "none"}, {"split_mode": 0}),
        ({"split_mode": "row"}, {"split_mode": 2}),
        ({"main_gpu": 3}, {"main_gpu": 3}),
        ({"tensor_split": (0.25, 0.75)}, {}),
        ({"prefetch": False}, {"load_mode": 1}),
    ],
)
def test_the_options_of_a_model_reach_llama(options: dict[str, Any], fields: dict[str, int | bool]) -> None:
    backend = load(tiny_model("llama"), **options)
    params = backend._weights.given.params  # what llama_model_load_from_file was given
    assert {name: getattr(params, name) for name in fields} == fields
    limit, split = int(lib.llama_max_devices()), options.get("tensor_split", ())
    shares = params.tensor_split[:limit] if params.tensor_split else []
    assert shares == ([*split, *[0.0] * (limit - len(split))] if split else [])
    feed(backend, 0, 0, 10)
    backend.close()


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"n_ctx": 100, "n_seq_max": 3}, {"n_ctx": 300, "n_seq_max": 4, "kv_unified": True, "swa_full": False}),
        ({"n_batch": 64}, {"n_batch": 64, "n_ubatch": 64}),
        ({"n_batch": 64, "n_ubatch": 32}, {"n_batch": 64, "n_ubatch": 32}),
        ({"n_threads": 3}, {"n_threads": 3, "n_threads_batch": 3}),
        ({"n_threads": 3, "n_threads_batch": 2}, {"n_threads": 3, "n_threads_batch": 2}),
        ({}, {"n_threads": default_threads(), "flash_attn_type": -1, "type_k": lib.GGML_TYPE_F16}),
        ({"flash_attn": True, "type_k": "q8_0", "type_v": "q4_0"}, {"flash_attn_type": 1, "type_k": 8, "type_v": 2}),
        ({"flash_attn": False, "type_k": "f32", "type_v": "bf16"}, {"flash_attn_type": 0, "type_k": 0, "type_v": 30}),
        ({"embeddings": True, "pooling": "last"}, {"embeddings": True, "pooling_type": 3}),
        ({}, {"embeddings": False, "pooling_type": 0, "rope_scaling_type": -1, "rope_freq_base": 0.0}),
        ({"rope_scaling": "yarn", "yarn_orig_ctx": 128}, {"rope_scaling_type": 2, "yarn_orig_ctx": 128}),
        ({"rope_freq_base": 500.0, "rope_freq_scale": 0.5}, {"rope_freq_base": 500.0, "rope_freq_scale": 0.5}),
    ],
)
def test_the_options_of_a_context_reach_llama(options: dict[str, Any], fields: dict[str, Any]) -> None:
    params = context_params(ContextOpts(**options))
    assert {name: getattr(params, name) for name in fields} == fields


def test_a_context_says_what_it_was_made_with() -> None:
    with opened(tiny_model("llama"), n_threads=3, n_threads_batch=2, n_batch=64, n_ubatch=32) as backend:
        told = [lib.llama_n_threads, lib.llama_n_threads_batch, lib.llama_n_batch, lib.llama_n_ubatch]
        assert [ask(backend._context) for ask in told] == [3, 2, 64, 32]


def test_more_shares_than_devices_are_an_error() -> None:
    limit = int(lib.llama_max_devices())
    with pytest.raises(ConfigError, match=f"at most {limit}"):
        load(tiny_model("llama"), tensor_split=(1.0,) * (limit + 1))


def test_progress_is_told_to_its_end() -> None:
    seen: list[float] = []
    options = LoadOptions(id="m", model_path=str(tiny_model("llama")), context_opts=ContextOpts(n_ctx=256))
    LlamaBackend(options, seen.append).close()
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_split_model_is_named_by_its_first_part(tmp_path: Path) -> None:
    first, second, _ = split_bert(tmp_path)
    with (
        opened(first, embeddings=True) as split,
        opened(tiny_bert(tmp_path / "whole.gguf"), embeddings=True) as whole,
    ):
        assert split.embed([[1, 2, 3]])[0].tobytes() == whole.embed([[1, 2, 3]])[0].tobytes()
        assert split.info.n_params == whole.info.n_params
    second.unlink()
    with pytest.raises(InvalidModelError):
        load(first)


def test_weights_that_may_not_be_locked_are_a_warning() -> None:
    script = f"""
        import os, resource
        from barrel_inference.config import ContextOpts, LoadOptions, ModelOpts
        from barrel_inference.engine.llama import LlamaBackend, features
        features()  # what it imports may be out of reach later
        options = LoadOptions(id="m", model_path={str(tiny_model("llama"))!r}, model_opts=ModelOpts(use_mlock=True),
                              context_opts=ContextOpts(n_ctx=256))
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        if os.geteuid() == 0:
            os.chmod(os.path.dirname(options.model_path), 0o755)
            os.setresuid(65534, 65534, 65534)  # root may lock what it likes
        print(LlamaBackend(options).info.warnings)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "could not be locked" in run.stdout


def test_features_are_told() -> None:
    told = features()
    assert told["max_sequences"] >= 256 and "CPU" in told["system"]


@pytest.mark.parametrize(
    "context",
    [
        {"n_batch": 1, "n_seq_max": 1},
        {"n_ctx": 1, "n_batch": 1, "n_seq_max": 1},
        {"n_batch": 3, "n_ubatch": 1, "n_seq_max": 3},
        {"n_ctx": 64, "n_batch": 512, "n_seq_max": 255},
    ],
)
def test_the_smallest_batches_and_the_most_sequences_do_not_end_the_process(context: dict[str, int]) -> None:
    with opened(tiny_model("llama"), **context) as backend:
        assert context["n_seq_max"] <= backend.info.n_batch <= context["n_batch"]
        rows = [Slice(seq, 0, (5,), want_logits=True) for seq in range(context["n_seq_max"])]
        assert backend.decode(rows, None) is DecodeStatus.OK


@pytest.mark.parametrize(
    ("wanted", "n_layer", "can_offload", "there"),
    [
        (99, 32, True, 33),
        (-1, 32, True, 33),
        (11, 32, True, 11),
        (0, 32, True, 0),
        (99, 32, False, 0),
    ],
)
def test_layers_on_a_gpu(wanted: int, n_layer: int, can_offload: bool, there: int) -> None:
    assert offloaded(wanted, n_layer, can_offload) == there
