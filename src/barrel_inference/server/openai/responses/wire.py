"""The Responses API's wire types. Values only. Input items stay mappings until ``items`` reads them: clients leave out
their types and send back whatever they were given."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from barrel_inference.server.openai.wire import Asked, Effort, KeepAlive, Said, StreamOptions

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class Reasoning(msgspec.Struct, kw_only=True):
    """``context`` and ``mode`` are refused where they ask for what is not the case anyway."""

    effort: Effort | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None


Include = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]


class TextFormat(msgspec.Struct, kw_only=True):
    """``schema``, ``name`` and ``strict`` belong to "json_schema"."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class Text(msgspec.Struct, kw_only=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class NamedTool(msgspec.Struct, kw_only=True):
    """``mode`` and ``tools`` belong to "allowed_tools"."""

    type: str
    name: str | None = None
    namespace: str | None = None
    mode: str | None = None
    tools: list[dict[str, Any]] | None = None


class ResponseRequest(Asked, kw_only=True):
    model: str
    input: str | list[dict[str, Any]] = msgspec.field(default_factory=list)
    instructions: str | None = None
    include: list[Include] | None = None  # of what is never there, nothing is included
    max_output_tokens: int | None = None
    metadata: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    reasoning: Reasoning | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    text: Text | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    tools: list[dict[str, Any]] | None = None
    top_logprobs: int | None = None
    top_p: float | None = None
    truncation: Literal["auto", "disabled"] | None = None
    # refused when they ask for something
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None
    # without influence on the answer
    max_tool_calls: int | None = None  # of tools that OpenAI runs
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    user: str | None = None
    client_metadata: Any = None
    keep_alive: KeepAlive = None


# ---- output items


class OutputText(Said, kw_only=True, tag_field="type", tag="output_text"):
    text: str = ""
    annotations: list[Any] = msgspec.field(default_factory=list)
    logprobs: list[Any] = msgspec.field(default_factory=list)


class ReasoningText(Said, kw_only=True, tag_field="type", tag="reasoning_text"):
    text: str = ""


class SummaryText(Said, kw_only=True, tag_field="type", tag="summary_text"):
    text: str = ""


class OutputMessage(Said, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: Status
    role: Literal["assistant"] = "assistant"
    content: list[OutputText] = msgspec.field(default_factory=list)


class ReasoningItem(Said, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    status: Status
    summary: list[SummaryText] = msgspec.field(default_factory=list)
    content: list[ReasoningText] = msgspec.field(default_factory=list)
    encrypted_content: str | UnsetType = UNSET


class Call(Said, kw_only=True):
    """``namespace``: of a tool that has one."""

    id: str
    call_id: str
    name: str
    status: Status
    namespace: str | UnsetType = UNSET


class FunctionCall(Call, kw_only=True, tag_field="type", tag="function_call"):
    arguments: str = ""


class CustomCall(Call, kw_only=True, tag_field="type", tag="custom_tool_call"):
    input: str = ""


Item = OutputMessage | ReasoningItem | FunctionCall | CustomCall
ContentPart = OutputText | ReasoningText


class CachedTokens(Said, kw_only=True):
    """``cache_write_tokens``: read, and kept."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class ReasoningTokens(Said, kw_only=True):
    reasoning_tokens: int = 0


class Usage(Said, kw_only=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: CachedTokens
    output_tokens_details: ReasoningTokens


class Incomplete(Said, kw_only=True):
    reason: Literal["max_output_tokens", "content_filter"]


class ResponseError(Said, kw_only=True):
    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class Response(Said, kw_only=True):
    id: str
    created_at: int
    model: str
    status: Status
    output: list[Item] = msgspec.field(default_factory=list)
    object: Literal["response"] = "response"
    error: ResponseError | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None = None
    completed_at: int | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: Reasoning | None = None
    safety_identifier: str | None = None
    store: bool = True
    temperature: float | None = None
    text: dict[str, Any] = msgspec.field(default_factory=dict)
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: str = "disabled"
    usage: Usage | None = None
    user: str | None = None
    background: bool = False
    service_tier: str = "default"


# ---- events


class Event(Said, kw_only=True):
    """Base. ``sequence_number`` counts from 0 within a stream."""

    sequence_number: int = 0


class Created(Event, kw_only=True, tag_field="type", tag="response.created"):
    response: Response


class InProgress(Event, kw_only=True, tag_field="type", tag="response.in_progress"):
    response: Response


class Completed(Event, kw_only=True, tag_field="type", tag="response.completed"):
    response: Response


class IncompleteEnd(Event, kw_only=True, tag_field="type", tag="response.incomplete"):
    response: Response


class FailedEnd(Event, kw_only=True, tag_field="type", tag="response.failed"):
    response: Response


class ItemAdded(Event, kw_only=True, tag_field="type", tag="response.output_item.added"):
    output_index: int
    item: Item


class ItemDone(Event, kw_only=True, tag_field="type", tag="response.output_item.done"):
    output_index: int
    item: Item


class OfItem(Event, kw_only=True):
    item_id: str
    output_index: int


class PartAdded(OfItem, kw_only=True, tag_field="type", tag="response.content_part.added"):
    content_index: int = 0
    part: ContentPart


class PartDone(OfItem, kw_only=True, tag_field="type", tag="response.content_part.done"):
    content_index: int = 0
    part: ContentPart


class TextDelta(OfItem, kw_only=True, tag_field="type", tag="response.output_text.delta"):
    delta: str
    content_index: int = 0
    logprobs: list[Any] = msgspec.field(default_factory=list)


class TextDone(OfItem, kw_only=True, tag_field="type", tag="response.output_text.done"):
    text: str
    content_index: int = 0
    logprobs: list[Any] = msgspec.field(default_factory=list)


class ReasoningDelta(OfItem, kw_only=True, tag_field="type", tag="response.reasoning_text.delta"):
    delta: str
    content_index: int = 0


class ReasoningDone(OfItem, kw_only=True, tag_field="type", tag="response.reasoning_text.done"):
    text: str
    content_index: int = 0


class SummaryAdded(OfItem, kw_only=True, tag_field="type", tag="response.reasoning_summary_part.added"):
    part: SummaryText
    summary_index: int = 0


class SummaryDone(OfItem, kw_only=True, tag_field="type", tag="response.reasoning_summary_part.done"):
    part: SummaryText
    summary_index: int = 0


class SummaryDelta(OfItem, kw_only=True, tag_field="type", tag="response.reasoning_summary_text.delta"):
    delta: str
    summary_index: int = 0


class SummaryTextDone(OfItem, kw_only=True, tag_field="type", tag="response.reasoning_summary_text.done"):
    text: str
    summary_index: int = 0


class ArgumentsDelta(OfItem, kw_only=True, tag_field="type", tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(OfItem, kw_only=True, tag_field="type", tag="response.function_call_arguments.done"):
    arguments: str
    name: str


class InputDelta(OfItem, kw_only=True, tag_field="type", tag="response.custom_tool_call_input.delta"):
    delta: str


class InputDone(OfItem, kw_only=True, tag_field="type", tag="response.custom_tool_call_input.done"):
    input: str


class Failure(Event, kw_only=True, tag_field="type", tag="error"):
    code: str | None
    message: str
    param: str | None = None


StreamEvent = (
    Created
    | InProgress
    | Completed
    | IncompleteEnd
    | FailedEnd
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | SummaryAdded
    | SummaryDone
    | SummaryDelta
    | SummaryTextDone
    | ArgumentsDelta
    | ArgumentsDone
    | InputDelta
    | InputDone
    | Failure
)


class Deleted(Said, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class Items(Said, kw_only=True):
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool = False
    object: Literal["list"] = "list"


class InputTokens(Said, kw_only=True):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"
