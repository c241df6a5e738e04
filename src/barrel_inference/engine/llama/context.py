"""A llama.cpp context made from our options: one unified KV pool for all sequences and one scratch sequence more."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import psutil

from barrel_inference.config import ContextOpts
from barrel_inference.engine.llama.binding import lib, log_tail
from barrel_inference.engine.llama.weights import Weights
from barrel_inference.errors import ConfigError, LoadError

GGML_TYPES = {
    "f32": lib.GGML_TYPE_F32,
    "f16": lib.GGML_TYPE_F16,
    "bf16": 30,  # the binding has no name for it
    "q4_0": lib.GGML_TYPE_Q4_0,
    "q5_0": lib.GGML_TYPE_Q5_0,
    "q5_1": lib.GGML_TYPE_Q5_1,
    "q8_0": lib.GGML_TYPE_Q8_0,
}
_FLASH = {"auto": -1, False: 0, True: 1}
_POOLING = {None: -1, "none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
_ROPE_SCALING = {None: -1, "none": 0, "linear": 1, "yarn": 2, "longrope": 3}


def default_threads() -> int:
    """Physical cores that this process may use."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, psutil.cpu_count(logical=False) or usable))


def open_context(weights: Weights, opts: ContextOpts) -> tuple[Any, bool]:
    """The context, and whether flash attention is on. ConfigError for what llama.cpp cannot combine,
    OutOfMemoryError for what it cannot allocate, else LoadError."""
    if opts.type_v in ("q4_0", "q5_0", "q5_1", "q8_0") and opts.flash_attn is False:
        raise ConfigError(
            f"type_v={opts.type_v} needs flash attention, which flash_attn=False switches off",
            option="context_opts.type_v",
            value=opts.type_v,
            allowed="f16, f32 or bf16, or flash_attn on",
        )
    log_tail.clear()
    log_tail.flash_attn_resolved = None
    context = lib.llama_init_from_model(weights.pointer, context_params(opts))
    if not context:
        raise log_tail.failure("llama.cpp cannot make this context", "not enough memory?", LoadError)
    _set_adapters(context, weights)
    resolved = log_tail.flash_attn_resolved
    return context, opts.flash_attn is not False if resolved is None else resolved


def context_params(opts: ContextOpts) -> Any:
    """llama_context_params."""
    params = lib.llama_context_default_params()
    params.n_seq_max = opts.n_seq_max + 1
    # A cell and a row for each sequence, or llama.cpp aborts.
    params.n_ctx = max(opts.n_ctx * opts.n_seq_max, params.n_seq_max)
    params.n_batch = max(min(opts.n_batch, opts.n_ctx), params.n_seq_max)
    params.n_ubatch = min(opts.n_ubatch or opts.n_batch, params.n_batch)
    if opts.embeddings:  # llama.cpp's pooling graph is made for a multiple of the sequences: for other sizes it aborts
        params.n_ubatch += -params.n_ubatch % params.n_seq_max
        params.n_batch = max(params.n_batch, params.n_ubatch)
    params.kv_unified = True  # sharing a prefix and copying a range are metadata operations only there
    params.swa_full = False
    params.n_threads = opts.n_threads or default_threads()
    params.n_threads_batch = opts.n_threads_batch or params.n_threads
    params.flash_attn_type = _FLASH[opts.flash_attn]
    params.type_k = GGML_TYPES[opts.type_k]
    params.type_v = GGML_TYPES[opts.type_v]
    params.embeddings = opts.embeddings
    # A generating context pools nothing: embed() asks it for token vectors and averages them.
    params.pooling_type = _POOLING[opts.pooling] if opts.embeddings or opts.pooling else _POOLING["none"]
    params.rope_freq_base = opts.rope_freq_base
    params.rope_freq_scale = opts.rope_freq_scale
    params.rope_scaling_type = _ROPE_SCALING[opts.rope_scaling]
    if opts.yarn_orig_ctx:
        params.yarn_orig_ctx = opts.yarn_orig_ctx
    return params


def _set_adapters(context: Any, weights: Weights) -> None:
    if not weights.adapters:
        return
    count = len(weights.adapters)
    pointers = (lib.llama_adapter_lora_p_ctypes * count)(*(adapter for adapter, _ in weights.adapters))
    scales = (ctypes.c_float * count)(*(scale for _, scale in weights.adapters))
    if lib.llama_set_adapters_lora(context, pointers, count, scales) != 0:
        raise LoadError(f"the LoRA adapters cannot be applied: {log_tail.reason('unknown reason')}")
