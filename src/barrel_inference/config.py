"""Options of a loaded model and of the runtime: frozen values, one owner each. Defaults live here and nowhere else."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from barrel_inference.types import Exactness, Fraction, TierKind

KvType = Literal["f16", "f32", "bf16", "q4_0", "q5_0", "q5_1", "q8_0"]
WeightResidency = Literal["eager", "lazy", "pinned", "lazy_then_pin_resident"]
FingerprintMode = Literal["safe", "gguf_chunked", "fast_unsafe"]
Steady = Literal["off", "billing", "clock"]  # what of moving parts is taken out of system messages; see chat/steady.py
PressureSource = Literal["none", "system", "nvidia_smi"]

Natural = Annotated[int, Meta(ge=0, le=2**40)]
Positive = Annotated[int, Meta(ge=1, le=2**40)]
Bytes = Annotated[int, Meta(ge=0, le=2**60)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Factor = Annotated[float, Meta(ge=0, le=1e12)]  # bounds keep nan and infinity out
ApiKey = Annotated[str, Meta(pattern=r"^[!-~]{8,}\Z")]  # what an HTTP header carries as it is
Share = Annotated[float, Meta(gt=0, le=1)]
LoraScale = Annotated[float, Meta(ge=-1e6, le=1e6)]

BACKENDS = ("llama", "stub")
BACKEND_GROUP = "barrel_inference.backends"  # entry points of third parties
BLOCK_TOKENS = 64
MAX_SEQUENCES = 255  # llama.cpp allows 256, of which one is scratch: states are read from a copy
MAX_DEVICES = 16  # llama_max_devices(): GGML_MAX_DEVICES of every build


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all option groups."""


class ModelOpts(Options, frozen=True):
    """How the weights are loaded and where they lie."""

    n_gpu_layers: Annotated[int, Meta(ge=-1, le=100_000)] = 0  # layers on the GPU; 99 or -1: all
    split_mode: Literal["none", "layer", "row"] = "layer"  # how several GPUs share a model
    main_gpu: Annotated[int, Meta(ge=0, lt=MAX_DEVICES)] = 0  # the GPU for what is not split
    tensor_split: Annotated[tuple[Factor, ...], Meta(max_length=MAX_DEVICES)] = ()  # each GPU's share of the model
    use_mmap: bool = True  # map the weights instead of copying them into memory
    use_mlock: bool = False  # keep the weights from being swapped out
    prefetch: bool = True  # read the weights ahead while the model loads
    pin_resident_after_first_request: bool = False  # lock the weights in memory once they have been used
    weight_residency: WeightResidency | None = None  # sets use_mmap, use_mlock, prefetch and the pin together
    vocab_only: bool = False  # load the tokenizer only


class ContextOpts(Options, frozen=True):
    """``n_ctx`` is per sequence (a request may always use all of it, whatever the others do); the KV pool holds
    n_ctx × n_seq_max cells."""

    n_ctx: Annotated[int, Meta(ge=1, le=2**24)] = 2048  # tokens of prompt and answer; for serve and run see above
    n_batch: Annotated[int, Meta(ge=1, le=2**20)] = 512  # most tokens in one decode
    n_ubatch: Annotated[int, Meta(ge=1, le=2**20)] | None = None  # tokens computed at once; not set: n_batch
    n_seq_max: Annotated[int, Meta(ge=1, le=MAX_SEQUENCES)] = 1  # requests at the same time; for serve see above
    n_threads: Annotated[int, Meta(ge=1, le=512)] | None = None  # for writing; not set: the physical cores
    n_threads_batch: Annotated[int, Meta(ge=1, le=512)] | None = None  # for reading prompts; not set: n_threads
    flash_attn: bool | Literal["auto"] = "auto"
    type_k: KvType = "f16"  # of the KV cache's keys
    type_v: KvType = "f16"  # of its values
    decode_budget_ms: Natural = 30_000  # a decode that takes longer fails; 0: no limit
    embeddings: bool = False  # load the model for embeddings instead of text
    pooling: Literal["none", "mean", "cls", "last", "rank"] | None = None  # not set: as the model says
    # 0: the model's; this and the next three change the KV state, so each value has a cache of its own
    rope_freq_base: Factor = 0.0
    rope_freq_scale: Factor = 0.0
    rope_scaling: Literal["none", "linear", "yarn", "longrope"] | None = None
    yarn_orig_ctx: Annotated[int, Meta(ge=0, lt=2**31)] = 0


class Policy(Options, frozen=True):
    """Save gates of the KV store, in tokens unless the name says otherwise. Those of cold saves rule what is written
    while a prompt is read; when a sequence ends, all of it is saved (docs/kv-cache.md says when that matters)."""

    min_tokens: Natural = 64  # shorter sequences are never saved
    cold_min_tokens: Natural = 64  # shorter prompts are not saved while they are being read
    cold_max_tokens: Natural | None = None  # prompts are saved up to this token while they are being read
    continued_interval: Natural = 256  # while writing, save completed blocks every this many tokens
    boundary_trim_tokens: Natural = 0  # tokens at the end of a prompt not saved while it is being read
    # distance between saved states of recurrent and hybrid models; a multiple of 64
    boundary_align_tokens: Positive = 2048
    session_resume_wait_ms: Natural = 500  # how long a request with parent_key waits for a save in progress
    evict_save_timeout_ms: Natural = 30_000  # longest time for saving when a model is unloaded
    # tokens read between two steps of running answers; not set: max(64, n_batch / 4)
    prefill_chunk_size: Positive | None = None


class TierSpec(Options, frozen=True):
    """One tier as a worker sees it: a directory, how long it lives, how much it may hold (real allocation, bytes)."""

    name: Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]{1,200}\Z")]
    kind: TierKind
    path: Annotated[str, Meta(min_length=1)]
    quota_bytes: Bytes
    # space left free on its file system; not set: 1 GiB, or a twentieth of it if that is less
    min_free_bytes: Bytes | None = None


class LoadOptions(Options, frozen=True):
    """Everything a worker needs to load one model. Built and validated by the parent; crosses the border once."""

    id: str
    backend: str = "llama"
    model_path: str | None = None  # absolute
    model_opts: ModelOpts = ModelOpts()
    context_opts: ContextOpts = ContextOpts()
    fingerprint: str = ""  # 64 hex
    files: tuple[tuple[str, str], ...] = ()  # path and identity of all that the fingerprints are of
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


class LoadArguments(Options, frozen=True):
    """What a caller of ``load_model`` writes, checked but not yet resolved into LoadOptions."""

    backend: str = "llama"
    model_path: str | None = None
    model_opts: ModelOpts = ModelOpts()
    context_opts: ContextOpts = ContextOpts()
    fingerprint: str | None = None  # 64 hex; computed
    fingerprint_mode: FingerprintMode = "safe"
    quant_type: str | None = None  # read from the GGUF
    quant_bits: Annotated[float, Meta(gt=0, le=64)] | None = None
    ctx_params_hash: str | None = None  # 64 hex; computed
    context_size: Positive | None = None  # n_ctx
    tier: TierKind = "ram"
    tier_srv: str | None = None  # the automatic one
    policy: Policy = Policy()
    lora: tuple[tuple[str, LoraScale], ...] = ()
    exact: Exactness = "live"
    cache: bool = True
    tool_call_markers: tuple[str, str] | None = None  # detected
    thinking_markers: tuple[str, str] | None = None  # detected
    stub: dict[str, Any] = {}


class ServerOptions(Options, frozen=True):
    """The HTTP server. Times in seconds unless the name says otherwise; 0 of a limit that may be 0 means none."""

    host: str = "127.0.0.1"  # address to listen on
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080  # 0: any free port
    api_keys: tuple[ApiKey, ...] = ()  # if there are any, clients must send one; at least eight characters each
    insecure_no_auth: bool = False  # allow other machines to connect without a key
    origins: tuple[str, ...] = ()  # other websites that may use the server; * matches anything
    hosts: tuple[str, ...] = ()  # other host names this server is reached by
    max_body_bytes: Positive = 64 << 20  # largest request body
    max_header_bytes: Positive = 64 << 10  # largest request head
    max_messages: Positive = 10_000  # longest conversation
    max_nesting: Positive = 64  # deepest JSON
    max_connections: Natural = 2048  # open at the same time; 0: no limit
    read_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0  # for a client to send its head, or more of its body
    write_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 60.0  # for a client to read more of its answer
    # how long an idle model stays loaded; -1: for ever
    keep_alive_default_ms: Annotated[int, Meta(ge=-1, le=2**53)] = 300_000
    v1_keep_alive: bool = False  # obey keep_alive in requests to /v1
    ping_s: Annotated[float, Meta(gt=0, le=3600)] = 10.0  # after so long a silence a stream sends a sign of life
    steady_prompts: Steady = "billing"  # taken out of system messages: Claude Code's header; "clock": times of day too
    max_loaded_models: Natural = 0  # 0: as many as fit in memory
    num_parallel: Annotated[int, Meta(ge=1, le=MAX_SEQUENCES)] = 4  # requests a model answers at the same time
    max_queue: Natural = 512  # requests that may wait for a model; 0: no limit
    queue_timeout_s: Seconds = 600.0  # longest wait in that queue; 0: no limit
    context_size: Positive | None = None  # for models that do not set their own; see above
    preload: tuple[str, ...] = ()  # models to load at the start
    auto_pull: bool = False  # fetch models that requests name and that are not installed
    drain_s: Seconds = 30.0  # time for running requests to finish at shutdown
    models: dict[str, dict[str, Any]] = {}  # by name: options of load_model, and parameters, system, template


class RegistryOpts(Options, frozen=True):
    """Where models come from and how they are fetched."""

    hf_endpoint: str = "https://huggingface.co"  # also HF_ENDPOINT
    hf_token: str | None = None  # also HF_TOKEN; sent to hf_endpoint's host only
    ollama_endpoint: str | None = None  # a mirror to use instead of https://registry.ollama.ai
    registry_credentials: dict[str, str] = {}  # for OCI registries: host[:port] -> "user:password"
    allow_private: bool = False  # allow downloads from loopback, private and link-local addresses
    connections: Annotated[int, Meta(ge=1, le=64)] = 4  # parallel downloads of parts of one file
    max_bytes_per_s: Natural = 0  # speed limit of a download; 0: none
    stall_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0  # a connection that sends nothing for so long is tried again
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] = 6  # failures in a row before a download is given up
    part_keep_days: Annotated[float, Meta(ge=0, le=36_500)] = 14.0  # gc removes unfinished downloads that are older
    max_context_size: Positive = 4096  # limits num_ctx of installed models; not set: at least server.context_size


class RuntimeConfig(Options, frozen=True):
    """The runtime of a process: its tiers and what every load starts from. One TOML file holds it.

    The automatic ``ram`` tier takes ``ram_quota_bytes``, by default min(25 % of RAM, half of the tmpfs); RAM is
    what a control group leaves of it.
    """

    ram_dir: str | None = None  # not set: /dev/shm, or the temporary directory if that is missing or tiny
    ram_quota_bytes: Positive | None = None  # not set: a quarter of the memory, or half of ram_dir if that is less
    tiers: tuple[TierSpec, ...] = ()  # where prompts are kept; see below
    cache_dir: str | None = None  # for small things such as fingerprints; not set: the user's cache directory
    model_opts: ModelOpts = ModelOpts()
    context_opts: ContextOpts = ContextOpts()
    policy: Policy = Policy()
    fingerprint_mode: FingerprintMode = "safe"  # how a model file is identified
    exact: Exactness = "live"  # cold: every answer equals one computed without a cache
    ready_timeout_s: Annotated[float, Meta(gt=0, le=1e9)] = 60.0  # longest silence of a model that is loading
    janitor_interval_s: Annotated[float, Meta(gt=0, le=3600)] = 2.0  # how often quotas and memory pressure are checked
    pressure: PressureSource = "none"  # where memory pressure is measured
    pressure_high: Fraction = 0.85  # evict from here on …
    pressure_low: Fraction = 0.75  # … until this is reached
    namespace_floor: Fraction = 0.05  # share of a tier that other models cannot take from a model
    namespace_cap: Share = 1.0  # largest share of a tier that one model may keep
    model_cache_dir: str | None = None  # where models are installed; not set: the user's cache directory
    registry: RegistryOpts = RegistryOpts()
    server: ServerOptions = ServerOptions()
