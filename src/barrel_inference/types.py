"""The values every layer speaks: what a request asks, what comes back, what a model is. Pure, frozen, imports
nothing of ours but errors."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

FinishReason = Literal["stop", "length", "cancelled", "context_full"]
CacheKind = Literal["exact", "partial", "live", "cold"]
TierKind = Literal["ram", "ram_file", "disk"]
CacheMode = Literal["auto", "off", "read", "write"]
Exactness = Literal["live", "cold"]
OnFull = Literal["queue", "error"]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0, le=1e6)]
Signed = Annotated[float, Meta(ge=-1e6, le=1e6)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Phase = Literal["starting", "ready", "restarting", "stopping", "stopped", "failed"]


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of all wire values: immutable, compared by content, encoded without defaults."""


class Sampling(Value, frozen=True):
    """How the next token is chosen. Neutral values switch a sampler off. ``temperature`` 0 is greedy.

    Order of application: logit_bias, constraint mask, penalties, DRY, top_n_sigma, top_k, typical_p, top_p, min_p,
    XTC, temperature.
    """

    temperature: Annotated[float, Meta(ge=0, le=1e6)] = 0.8
    top_k: Annotated[int, Meta(ge=-1, lt=2**31)] = 40
    top_p: Fraction = 0.95
    min_p: Fraction = 0.05
    typical_p: Fraction = 1.0
    top_n_sigma: Signed = -1.0
    repeat_penalty: Positive = 1.0
    repeat_last_n: Annotated[int, Meta(ge=-1, lt=2**31)] = 64
    presence_penalty: Signed = 0.0
    frequency_penalty: Signed = 0.0
    mirostat: Literal[0, 1, 2] = 0
    mirostat_tau: Positive = 5.0
    mirostat_eta: Positive = 0.1
    dry_multiplier: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    dry_base: Positive = 1.75
    dry_allowed_length: Annotated[int, Meta(ge=0, lt=2**31)] = 2
    dry_last_n: Annotated[int, Meta(ge=-1, lt=2**31)] = -1
    dry_breakers: Annotated[tuple[Annotated[str, Meta(max_length=40)], ...], Meta(max_length=16)] = (
        "\n",
        ":",
        '"',
        "*",
    )
    xtc_probability: Fraction = 0.0
    xtc_threshold: Fraction = 0.1
    logit_bias: dict[int, float] = {}
    ignore_eos: bool = False
    seed: Seed | None = None  # None: drawn by the runtime and reported in Completion.seed


class Constraint(Value, frozen=True):
    """What the output must match; at most one field set. ``start_after`` arms it once that text has been produced
    (after the thinking), and not ``outside``: between two marks of which the first may be empty, as it is in an output
    that begins inside."""

    json_schema: str | None = None  # JSON text of the schema
    regex: str | None = None
    grammar: str | None = None  # Lark, or GBNF (recognised by "::=")
    choices: tuple[str, ...] | None = None
    start_after: str | None = None
    outside: tuple[str, str] | None = None


class Request(Value, frozen=True):
    """One generation as the worker sees it. ``prompt`` is text or token ids; ``resume`` is set by the supervisor
    after a crash."""

    id: str
    prompt: str | tuple[int, ...]
    sampling: Sampling
    max_tokens: int | None = None  # None: until the context is full
    shift_keep: int | None = None  # a full context does not end it: see aio.params.RequestOptions
    stop: tuple[str, ...] = ()
    constraint: Constraint | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    add_special: bool = True
    parse_special: bool = True  # control tokens written in the prompt text count as such
    boundaries: tuple[int, ...] = ()  # ends of messages: offsets in the prompt, in characters of a text, else in tokens
    cache: CacheMode = "auto"
    exact: Exactness | None = None  # None: the model's default
    parent_key: str | None = None
    session: str | None = None
    salt: str = ""
    on_full: OnFull = "queue"
    timeout_s: float | None = None
    keep_special: bool = False  # control tokens appear in the text (for tool-call parsers)
    resume: Resume | None = None


class Resume(Value, frozen=True):
    """What a dead worker had already done for a request, so that a new one continues to the same text."""

    prompt_tokens: tuple[int, ...]
    emitted: tuple[int, ...]
    start: int  # position the first prefill began at: the same cuts give the same batch shapes


class TokenLogprob(Value, frozen=True):
    token: int
    text: str
    logprob: float  # natural log
    bytes: tuple[int, ...] = ()
    top: tuple[TokenLogprob, ...] = ()


class CacheReport(Value, frozen=True):
    """Where the prompt's KV came from. ``first_mismatch``: token position at which the nearest stored prefix
    differs, if any."""

    kind: CacheKind = "cold"
    restored_tokens: int = 0
    prefilled_tokens: int = 0
    tier: str | None = None  # name of the slowest tier read; "live" for resident sequences
    first_mismatch: int | None = None
    restore_s: float = 0.0


class Usage(Value, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Timings(Value, frozen=True):
    """Seconds. ``first_token_s`` counts from the arrival at the runtime."""

    queued_s: float = 0.0
    restore_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    first_token_s: float = 0.0
    total_s: float = 0.0


class Chunk(Value, frozen=True):
    """One piece of a stream. ``text`` is always whole UTF-8; the last chunk carries ``completion``."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    index: int = 0  # which of n
    usage: Usage | None = None  # of the prompt, known when its prefill begins; with the first chunk only
    completion: Completion | None = None


class Completion(Value, frozen=True):
    """One generation. ``tokens`` are those that were sampled, without the prompt's; ``text`` is theirs without the stop
    string."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    finish_key: str | None = None  # chain key of the whole sequence, for parent_key; None when nothing was saved
    stop_text: str | None = None  # the stop string that ended it
    seed: int = 0
    cache: CacheReport = CacheReport()
    usage: Usage = Usage()
    timings: Timings = Timings()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_tokens: tuple[int, ...] = ()
    shifted_tokens: int = 0  # given up on the way, to go on in a full context
    resumed: int = 0  # times the request was continued after a worker's death
    index: int = 0
    others: tuple[Completion, ...] = ()  # with n > 1: the second to the last, in the first


class Embedding(Value, frozen=True):
    """``vectors``: one float list per input, L2-normalised. ``prompt_tokens``: sum over inputs."""

    vectors: tuple[tuple[float, ...], ...]
    prompt_tokens: int


class Message(Value, frozen=True):
    """One chat message in the neutral form that templates read (OpenAI's field names)."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class ModelInfo(Value, frozen=True):
    """A snapshot, cheap enough for a router's hot path."""

    id: str
    phase: Phase
    backend: str = "llama"
    model_path: str | None = None
    fingerprint: str = ""
    namespace: str = ""
    architecture: str = ""
    description: str = ""
    n_ctx: int = 0
    n_ctx_train: int = 0
    n_vocab: int = 0
    n_embd: int = 0
    n_layer: int = 0
    n_gpu_layers: int = 0  # of n_layer + 1 (the output is one): what is on a GPU, 0 when llama.cpp was built for none
    n_params: int = 0
    size_bytes: int = 0
    n_seq_max: int = 1
    sequences_free: int = 0
    queued: int = 0
    running: int = 0
    kv_bytes_per_token: int = 0
    cache_layout: str = ""  # plain | swa | recurrent | hybrid | whole | off
    cache_verdict: str = ""  # "exact", or why the cache is off
    memory_path: str = ""  # folder in which what it wrote is remembered; empty: nowhere
    memory_bytes: int = 0  # the most that may be there
    last_cache: CacheReport | None = None
    resident_bytes: int = 0  # of the worker process
    weights_resident_bytes: int = 0  # of the model file, measured with mincore
    restarts: int = 0
    worker_pid: int | None = None
    vocab_only: bool = False
    embeddings: bool = False
    chat_template: str | None = None
    bos_token: str = ""
    eos_token: str = ""
    warnings: tuple[str, ...] = ()
    loader: dict[str, Any] = {}


class TierInfo(Value, frozen=True):
    name: str
    kind: TierKind
    path: str
    quota_bytes: int
    used_bytes: int = 0
    objects: int = 0
    writable: bool = True


class CacheStats(Value, frozen=True):
    """Counters since start, over all models; see docs/kv-cache.md for each one."""

    tiers: tuple[TierInfo, ...] = ()
    counters: dict[str, float] = {}
    by_model: dict[str, dict[str, float]] = {}
    by_tier: dict[str, dict[str, dict[str, float]]] = {}  # by tier and model ("": of none that was loaded here)


class CacheLookup(Value, frozen=True):
    """How much of a prompt would be restored, by tier name."""

    prompt_tokens: int
    cached_tokens: int
    by_tier: dict[str, int] = {}
    first_mismatch: int | None = None
