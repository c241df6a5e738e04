"""Anthropic's wire types: messages and token counts. Values only. Requests refuse what they do not know."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from barrel_inference.server.neutral import ToolName

# ---- content of requests


class Block(msgspec.Struct, kw_only=True):
    """Base. ``cache_control`` is accepted: everything is cached, and usage says what was."""

    cache_control: Any = None


class TextBlock(Block, kw_only=True, tag_field="type", tag="text"):
    text: str
    citations: Any = None


class ImageBlock(Block, kw_only=True, tag_field="type", tag="image"):
    source: Any = None


class DocumentBlock(Block, kw_only=True, tag_field="type", tag="document"):
    """``source`` of type "text" or "content" is read as text."""

    source: dict[str, Any]
    title: str | None = None
    context: str | None = None
    citations: Any = None


class SearchResultBlock(Block, kw_only=True, tag_field="type", tag="search_result"):
    content: list[TextBlock]
    source: str
    title: str
    citations: Any = None


class ThinkingBlock(Block, kw_only=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Block, kw_only=True, tag_field="type", tag="redacted_thinking"):
    data: str = ""


class ToolUseBlock(Block, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]
    caller: Any = None


class ToolResultBlock(Block, kw_only=True, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock] = ""
    is_error: bool | None = None


BlockIn = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
)


class MessageIn(msgspec.Struct, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[BlockIn]


class ToolIn(msgspec.Struct, kw_only=True):
    """``type`` is absent or "custom"; tools that Anthropic runs itself are refused by name."""

    name: ToolName
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: Any = None
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    input_examples: Any = None
    allowed_callers: Any = None


class ToolChoice(msgspec.Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(msgspec.Struct, kw_only=True):
    """``display`` "omitted": the thought is in the block's signature only. Without ``budget_tokens`` there is no
    limit."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Meta(ge=1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, kw_only=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the prompt depends on."""

    model: str
    messages: list[MessageIn]
    system: str | list[TextBlock] | None = None
    tools: list[ToolIn] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    cache_control: Any = None
    context_management: Any = None  # no edits are made, and the answer says so
    # refused when they ask for something
    mcp_servers: list[Any] | None = None
    container: Any = None
    thread: Any = None
    compaction: Any = None
    # without influence on the answer
    metadata: Any = None
    service_tier: str | None = None
    inference_geo: str | None = None
    speed: str | None = None
    billing_policy: Any = None
    diagnostics: Any = None
    fallbacks: Any = None  # after a refusal, and nothing is refused here
    fallback_credit_token: Any = None
    keep_alive: str | float | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """``max_tokens`` 0 only reads the prompt, for the cache."""

    max_tokens: Annotated[int, Meta(ge=0)]
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    stop_sequences: list[Annotated[str, Meta(min_length=1)]] | None = None


# ---- answers


class Said(msgspec.Struct, kw_only=True):
    """Base of answers."""


class Text(Said, kw_only=True, tag_field="type", tag="text"):
    """Without ``citations``: Anthropic leaves it out where there are none, and strict clients refuse null."""

    text: str = ""


class Thinking(Said, kw_only=True, tag_field="type", tag="thinking"):
    thinking: str = ""
    signature: str = ""


class ToolUse(Said, kw_only=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any] = msgspec.field(default_factory=dict)


BlockOut = Text | Thinking | ToolUse
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class Usage(Said, kw_only=True):
    """The prompt is the sum of three: what came from the cache, what went into it (when the request marks something
    for it), and the rest."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    service_tier: str = "standard"


class Edits(Said, kw_only=True):
    applied_edits: list[Any] = msgspec.field(default_factory=list)


class Message(Said, kw_only=True):
    id: str
    model: str
    content: list[BlockOut]
    usage: Usage
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    context_management: Edits | UnsetType = UNSET


class Counted(Said, kw_only=True):
    input_tokens: int


class Model(Said, kw_only=True, tag_field="type", tag="model"):
    id: str
    display_name: str
    created_at: str
    lifecycle: str = "active"
    max_input_tokens: int | None = None
    max_tokens: int | None = None


class Models(Said, kw_only=True):
    data: list[Model]
    has_more: bool
    first_id: str | None
    last_id: str | None


# ---- events


class MessageStart(Said, kw_only=True, tag_field="type", tag="message_start"):
    message: Message


class BlockStart(Said, kw_only=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: BlockOut


class TextDelta(Said, kw_only=True, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(Said, kw_only=True, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(Said, kw_only=True, tag_field="type", tag="signature_delta"):
    signature: str


class InputDelta(Said, kw_only=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockDelta(Said, kw_only=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(Said, kw_only=True, tag_field="type", tag="content_block_stop"):
    index: int


class Stop(Said, kw_only=True):
    stop_reason: StopReason
    stop_sequence: str | None = None


class MessageDelta(Said, kw_only=True, tag_field="type", tag="message_delta"):
    delta: Stop
    usage: Usage
    context_management: Edits | UnsetType = UNSET


class MessageStop(Said, kw_only=True, tag_field="type", tag="message_stop"):
    pass


class Ping(Said, kw_only=True, tag_field="type", tag="ping"):
    pass


class Details(Said, kw_only=True):
    error_code: str


class Problem(Said, kw_only=True):
    type: str
    message: str
    details: Details | UnsetType = UNSET


class Failed(Said, kw_only=True, tag_field="type", tag="error"):
    error: Problem
    request_id: str | UnsetType = UNSET


StreamEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping | Failed
