"""Ollama's JSON: what its clients send and what they read. Values only; see docs/api.md for the fields that are ours.

Requests ignore unknown fields, as Ollama does. Fields of answers that Ollama leaves out when empty are left out here.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

Json = dict[str, Any]


class Body(msgspec.Struct, kw_only=True):
    """Base of requests; ``null`` is as good as absent wherever None is allowed."""


class Shown(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Base of answers."""


# ---- requests


class Named(Body):
    """``name`` is the older spelling of ``model``."""

    model: str | None = None
    name: str | None = None


class Generating(Body):
    model: str = ""
    stream: bool | None = None  # true
    format: Any = None  # "json", or a JSON schema
    keep_alive: Any = None
    options: Json | None = None
    think: Any = None
    truncate: bool | None = None  # true
    shift: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    debug_render_only: bool = msgspec.field(default=False, name="_debug_render_only")
    # ours
    cache: str | None = None
    session: str | None = None
    parent_key: str | None = None


class GenerateRequest(Generating):
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool | None = None
    images: list[str] | None = None


class ChatMessage(Body):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[Json] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ChatRequest(Generating):
    messages: list[ChatMessage] | None = None
    tools: list[Json] | None = None


class EmbedRequest(Body):
    model: str = ""
    input: Any = None
    truncate: bool | None = None  # true
    dimensions: int | None = None
    keep_alive: Any = None
    options: Json | None = None


class EmbeddingsRequest(Body):
    model: str = ""
    prompt: str | None = None
    keep_alive: Any = None
    options: Json | None = None


class ShowRequest(Named):
    verbose: bool | None = None
    system: str | None = None
    template: str | None = None
    options: Json | None = None


class TransferRequest(Named):
    """Of pull and push."""

    insecure: bool | None = None
    stream: bool | None = None


class CreateRequest(Named):
    modelfile: str | None = None
    from_: str | None = msgspec.field(default=None, name="from")
    files: dict[str, str] | None = None
    adapters: dict[str, str] | None = None
    template: str | None = None
    license: str | list[str] | None = None
    system: str | None = None
    parameters: Json | None = None
    messages: list[Json] | None = None
    quantize: str | None = None
    quantization: str | None = None  # the older spelling
    stream: bool | None = None
    # refused
    renderer: Any = None
    parser: Any = None
    requires: Any = None
    info: Any = None
    draft: Any = None
    draft_files: Any = None
    draft_quantize: Any = None
    remote_host: Any = None


NOT_CREATED = ("renderer", "parser", "requires", "info", "draft", "draft_files", "draft_quantize", "remote_host")


class CopyRequest(Body):
    source: str = ""
    destination: str = ""


# ---- answers


class FunctionCall(Shown, kw_only=True):
    name: str
    arguments: Json
    index: int | None = None


class ToolCall(Shown, kw_only=True):
    function: FunctionCall
    id: str | None = None


class Logprob(Shown):
    token: str
    logprob: float
    bytes: list[int] = []
    top_logprobs: list[Logprob] = []


class Metrics(Shown):
    """Nanoseconds and counts of the last piece. The ones below ``eval_duration`` are ours."""

    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    prompt_eval_cached_count: int | None = None
    prompt_eval_duration: int = 0
    eval_count: int = 0
    eval_duration: int = 0
    truncated_messages: int = 0  # left out of the prompt, which was too long
    truncated_tokens: int = 0
    shifted_tokens: int = 0  # given up to go on when the context was full
    capped: dict[str, int] | None = None  # options that asked for more than there is, and what was given
    finish_key: str | None = None
    cache: Json | None = None


class Generated(Metrics, kw_only=True):
    """One piece of ``/api/generate``."""

    model: str
    created_at: str
    response: str
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None
    done: bool
    done_reason: str | None = None
    context: list[int] | None = None
    logprobs: list[Logprob] | None = None
    debug_info: Json | None = msgspec.field(default=None, name="_debug_info")


class AnswerMessage(Shown, kw_only=True):
    role: str
    content: str
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None


class Answered(Metrics, kw_only=True):
    """One piece of ``/api/chat``."""

    model: str
    created_at: str
    message: AnswerMessage
    done: bool
    done_reason: str | None = None
    logprobs: list[Logprob] | None = None
    debug_info: Json | None = msgspec.field(default=None, name="_debug_info")


class Embedded(msgspec.Struct, kw_only=True):
    model: str
    embeddings: list[tuple[float, ...]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddingOnly(msgspec.Struct):
    embedding: tuple[float, ...] = ()


class Details(msgspec.Struct, kw_only=True):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    context_length: int | UnsetType = UNSET
    embedding_length: int | UnsetType = UNSET


class Listed(msgspec.Struct, kw_only=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details
    capabilities: list[str]


class Tags(msgspec.Struct):
    models: list[Listed]


class Running(msgspec.Struct, kw_only=True):
    """Ours are ``names``, all that it has been asked for by, and ``until``: a time, or ``never`` when it is held or a
    request is in flight."""

    name: str
    names: list[str]
    model: str
    size: int
    digest: str
    details: Details
    expires_at: str
    size_vram: int
    context_length: int
    until: str
    active: int
    queued: int


class Processes(msgspec.Struct):
    models: list[Running]


class Shower(msgspec.Struct, kw_only=True):
    """The answer of ``/api/show``."""

    modelfile: str
    parameters: str
    template: str
    details: Details
    model_info: Json
    capabilities: list[str]
    modified_at: str
    license: str | UnsetType = UNSET
    system: str | UnsetType = UNSET
    messages: list[Json] | UnsetType = UNSET
    projector_info: Json | UnsetType = UNSET
    tensors: list[Json] | UnsetType = UNSET


class Version(msgspec.Struct):
    """``version`` is the Ollama version whose API this is; clients compare it."""

    version: str
    barrel_inference: str


class Cloud(msgspec.Struct, kw_only=True):
    disabled: bool
    source: str


class Status(msgspec.Struct):
    cloud: Cloud


class Recommended(msgspec.Struct):
    recommendations: list[Json]


class Progress(Shown, kw_only=True):
    status: str
    digest: str | None = None
    total: int | None = None
    completed: int | None = None
