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

    n_gpu_layers: Annotated[int, Meta(ge=-1, le=100_000)] = 0  # 99 or -1 = all
    split_mode: Literal["none", "layer", "row"] = "layer"
    main_gpu: Annotated[int, Meta(ge=0, lt=MAX_DEVICES)] = 0
    tensor_split: Annotated[tuple[Factor, ...], Meta(max_length=MAX_DEVICES)] = ()
    use_mmap: bool = True
    use_mlock: bool = False
    prefetch: bool = True
    pin_resident_after_first_request: bool = False
    weight_residency: WeightResidency | None = None
    vocab_only: bool = False


class ContextOpts(Options, frozen=True):
    """``n_ctx`` is per sequence (a request may always use all of it, whatever the others do); the KV pool holds
    n_ctx × n_seq_max cells."""

    n_ctx: Annotated[int, Meta(ge=1, le=2**24)] = 2048  # serve and run: see server.context_size
    n_batch: Annotated[int, Meta(ge=1, le=2**20)] = 512
    n_ubatch: Annotated[int, Meta(ge=1, le=2**20)] | None = None  # n_batch
    n_seq_max: Annotated[int, Meta(ge=1, le=MAX_SEQUENCES)] = 1  # serve: see server.num_parallel
    n_threads: Annotated[int, Meta(ge=1, le=512)] | None = None  # physical cores
    n_threads_batch: Annotated[int, Meta(ge=1, le=512)] | None = None  # n_threads
    flash_attn: bool | Literal["auto"] = "auto"
    type_k: KvType = "f16"
    type_v: KvType = "f16"
    decode_budget_ms: Natural = 30_000  # 0 = off
    embeddings: bool = False
    pooling: Literal["none", "mean", "cls", "last", "rank"] | None = None  # the model's
    rope_freq_base: Factor = 0.0  # 0 = the model's; these four change KV bytes and enter the namespace
    rope_freq_scale: Factor = 0.0
    rope_scaling: Literal["none", "linear", "yarn", "longrope"] | None = None
    yarn_orig_ctx: Annotated[int, Meta(ge=0, lt=2**31)] = 0


class Policy(Options, frozen=True):
    """Save gates of the KV store, in tokens unless the name says otherwise. Those of cold saves rule what is written
    while a prompt is read; when a sequence ends, all of it is saved (docs/kv-cache.md says when that matters)."""

    min_tokens: Natural = 64  # shorter sequences are never saved
    cold_min_tokens: Natural = 64  # shorter prompts are not saved while they are read
    cold_max_tokens: Natural | None = None  # while a prompt is read, it is saved no further than this
    continued_interval: Natural = 256  # while generating, complete blocks are saved every so many tokens
    boundary_trim_tokens: Natural = 0  # so much of a prompt's end is not saved while it is read
    boundary_align_tokens: Positive = 2048  # distance of states of recurrent and hybrid models; a multiple of 64
    session_resume_wait_ms: Natural = 500  # how long parent_key waits for a save in flight
    evict_save_timeout_ms: Natural = 30_000  # most time for saves at unload
    prefill_chunk_size: Positive | None = None  # max(64, n_batch / 4)


class TierSpec(Options, frozen=True):
    """One tier as a worker sees it: a directory, how long it lives, how much it may hold (real allocation, bytes)."""

    name: Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]{1,200}\Z")]
    kind: TierKind
    path: Annotated[str, Meta(min_length=1)]
    quota_bytes: Bytes
    min_free_bytes: Bytes | None = None  # left free on its file system; a GiB, but at most a twentieth of that


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

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    api_keys: tuple[ApiKey, ...] = ()
    insecure_no_auth: bool = False  # allows an address that others can reach without keys
    origins: tuple[str, ...] = ()  # web pages that may ask, beside those of this machine; * within
    hosts: tuple[str, ...] = ()  # Host names that are ours, beside this machine's
    max_body_bytes: Positive = 64 << 20
    max_header_bytes: Positive = 64 << 10
    max_messages: Positive = 10_000
    max_nesting: Positive = 64  # of JSON
    max_connections: Natural = 2048  # open at a time
    read_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0  # for a client to send its head, or more of its body
    write_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 60.0  # for a client to read more of its answer
    keep_alive_default_ms: Annotated[int, Meta(ge=-1, le=2**53)] = 300_000  # -1: models stay loaded
    v1_keep_alive: bool = False  # whether keep_alive in requests to /v1 counts
    ping_s: Annotated[float, Meta(gt=0, le=3600)] = 10.0  # of silence in a stream, then clients are told to wait on
    steady_prompts: Steady = "billing"  # taken out of system messages: Claude Code's header; "clock": times of day too
    max_loaded_models: Natural = 0  # as many as fit
    num_parallel: Annotated[int, Meta(ge=1, le=MAX_SEQUENCES)] = 4  # requests of one model at a time; see above
    max_queue: Natural = 512  # of one model
    queue_timeout_s: Seconds = 600.0
    context_size: Positive | None = None  # of models that do not say theirs, in serve and run; see above
    preload: tuple[str, ...] = ()
    auto_pull: bool = False
    drain_s: Seconds = 30.0  # running requests may go on so long at the end
    models: dict[str, dict[str, Any]] = {}  # name: options of load_model, and parameters, system, template


class RegistryOpts(Options, frozen=True):
    """Where models come from and how they are fetched."""

    hf_endpoint: str = "https://huggingface.co"  # HF_ENDPOINT
    hf_token: str | None = None  # HF_TOKEN; sent to hf_endpoint's host only
    ollama_endpoint: str | None = None  # stands in for https://registry.ollama.ai (a mirror)
    registry_credentials: dict[str, str] = {}  # host[:port] -> "user:password", for OCI registries
    allow_private: bool = False  # pull from loopback, private and link-local addresses
    connections: Annotated[int, Meta(ge=1, le=64)] = 4  # parallel ranges of one file
    max_bytes_per_s: Natural = 0  # of one download; 0: no limit
    stall_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0  # without a byte, a connection is given up and tried again
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] = 6  # in a row without a byte of progress
    part_keep_days: Annotated[float, Meta(ge=0, le=36_500)] = 14.0  # gc leaves younger unfinished downloads alone
    max_context_size: Positive = 4096  # caps num_ctx of installed models; not set: at least server.context_size


class RuntimeConfig(Options, frozen=True):
    """The runtime of a process: its tiers and what every load starts from. One TOML file holds it.

    The automatic ``ram`` tier takes ``ram_quota_bytes``, by default min(25 % of RAM, half of the tmpfs); RAM is
    what a control group leaves of it.
    """

    ram_dir: str | None = None  # /dev/shm, or the temporary directory where that is missing or tiny
    ram_quota_bytes: Positive | None = None
    tiers: tuple[TierSpec, ...] = ()  # started with the runtime
    cache_dir: str | None = None  # small things worth remembering (fingerprints); the user cache directory
    model_opts: ModelOpts = ModelOpts()
    context_opts: ContextOpts = ContextOpts()
    policy: Policy = Policy()
    fingerprint_mode: FingerprintMode = "safe"
    exact: Exactness = "live"
    ready_timeout_s: Annotated[float, Meta(gt=0, le=1e9)] = 60.0  # of a loading worker, from each sign of progress
    janitor_interval_s: Annotated[float, Meta(gt=0, le=3600)] = 2.0
    pressure: PressureSource = "none"
    pressure_high: Fraction = 0.85
    pressure_low: Fraction = 0.75
    namespace_floor: Fraction = 0.05  # of a tier's quota; no model is pushed below it by others
    namespace_cap: Share = 1.0  # of a tier's quota; no model keeps more
    model_cache_dir: str | None = None  # root of the registry; the user cache directory
    registry: RegistryOpts = RegistryOpts()
    server: ServerOptions = ServerOptions()
