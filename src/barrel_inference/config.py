"""Options of a loaded model and of the runtime: frozen values, one owner each. Defaults live here and nowhere else."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from barrel_inference.types import Exactness, TierKind

KvType = Literal["f16", "f32", "bf16", "q4_0", "q5_0", "q5_1", "q8_0"]
WeightResidency = Literal["eager", "lazy", "pinned", "lazy_then_pin_resident"]

BLOCK_TOKENS = 64
MAX_SEQUENCES = 254  # llama.cpp allows 256; two are scratch


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all option groups."""


class ModelOpts(Options, frozen=True):
    n_gpu_layers: int = 0
    split_mode: Literal["none", "layer", "row"] = "layer"
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    use_mmap: bool = True
    use_mlock: bool = False
    prefetch: bool = True
    pin_resident_after_first_request: bool = False
    weight_residency: WeightResidency | None = None
    vocab_only: bool = False


class ContextOpts(Options, frozen=True):
    """``n_ctx`` is per sequence (a request may always use all of it, whatever the others do); the KV pool holds
    n_ctx × n_seq_max cells."""

    n_ctx: int = 2048
    n_batch: int = 512
    n_ubatch: int | None = None  # n_batch
    n_seq_max: int = 1
    n_threads: int | None = None  # physical cores
    n_threads_batch: int | None = None  # n_threads
    flash_attn: bool | Literal["auto"] = "auto"
    type_k: KvType = "f16"
    type_v: KvType = "f16"
    decode_budget_ms: int = 30_000  # 0 = off
    embeddings: bool = False
    pooling: Literal["none", "mean", "cls", "last", "rank"] | None = None  # the model's
    rope_freq_base: float = 0.0  # 0 = the model's; these four change KV bytes and enter the namespace
    rope_freq_scale: float = 0.0
    rope_scaling: Literal["none", "linear", "yarn", "longrope"] | None = None
    yarn_orig_ctx: int = 0


class Policy(Options, frozen=True):
    """Save gates of the KV store, in tokens unless the name says otherwise."""

    min_tokens: int = 64
    cold_min_tokens: int = 64
    cold_max_tokens: int | None = None
    continued_interval: int = 256
    boundary_trim_tokens: int = 0
    boundary_align_tokens: int = 2048
    session_resume_wait_ms: int = 500
    evict_save_timeout_ms: int = 30_000
    prefill_chunk_size: int | None = None  # max(64, n_batch / 4)


class TierSpec(Options, frozen=True):
    """One tier as a worker sees it: a directory, how long it lives, how much it may hold (real allocation, bytes)."""

    name: str
    kind: TierKind
    path: str
    quota_bytes: int


class LoadOptions(Options, frozen=True):
    """Everything a worker needs to load one model. Built and validated by the parent; crosses the border once."""

    id: str
    backend: str = "llama"
    model_path: str | None = None  # absolute
    model_opts: ModelOpts = ModelOpts()
    context_opts: ContextOpts = ContextOpts()
    fingerprint: str = ""  # 64 hex
    quant_type: str | None = None
    quant_bits: float | None = None
    ctx_params_hash: str | None = None
    context_size: int | None = None
    tiers: tuple[TierSpec, ...] = ()  # all readable tiers, fastest first
    save_tier: str | None = None  # name of the tier saves go to
    policy: Policy = Policy()
    lora: tuple[tuple[str, float, str], ...] = ()  # path, scale, sha256 hex
    exact: Exactness = "live"
    cache: bool = True
    tool_call_markers: tuple[str, str] | None = None
    thinking_markers: tuple[str, str] | None = None
    stub: dict[str, Any] = {}  # options of the stub backend (faults, delays, vocabulary)
