"""OpenAI's wire types: chat completions, completions, embeddings, models. Values only.

Requests refuse what they do not know, as OpenAI does; a field that is here and not in OpenAI's API is an extension that
other local servers have, too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from barrel_inference.server.neutral import ToolName

Stop = str | list[str] | None
Logits = dict[str, float] | None
KeepAlive = str | float | None
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Asked(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of requests."""


class Said(msgspec.Struct, kw_only=True):
    """Base of answers."""


# ---- messages


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    text: str
    cache_control: Any = None


class RefusalPart(msgspec.Struct, tag_field="type", tag="refusal"):
    refusal: str


class ImagePart(msgspec.Struct, tag_field="type", tag="image_url"):
    image_url: Any = None


class AudioPart(msgspec.Struct, tag_field="type", tag="input_audio"):
    input_audio: Any = None


class FilePart(msgspec.Struct, tag_field="type", tag="file"):
    file: Any = None


Part = TextPart | RefusalPart | ImagePart | AudioPart | FilePart
ContentIn = str | list[Part] | None


class FunctionCall(msgspec.Struct, kw_only=True):
    name: str
    arguments: str | dict[str, Any] = ""


class ToolCallIn(msgspec.Struct, kw_only=True):
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class SystemMessage(msgspec.Struct, kw_only=True, tag_field="role", tag="system"):
    content: ContentIn
    name: str | None = None


class DeveloperMessage(msgspec.Struct, kw_only=True, tag_field="role", tag="developer"):
    content: ContentIn
    name: str | None = None


class UserMessage(msgspec.Struct, kw_only=True, tag_field="role", tag="user"):
    content: ContentIn
    name: str | None = None


class AssistantMessage(msgspec.Struct, kw_only=True, tag_field="role", tag="assistant"):
    content: ContentIn = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallIn] | None = None
    function_call: FunctionCall | None = None
    audio: Any = None


class ToolMessage(msgspec.Struct, kw_only=True, tag_field="role", tag="tool"):
    content: ContentIn
    tool_call_id: str
    name: str | None = None


class FunctionMessage(msgspec.Struct, kw_only=True, tag_field="role", tag="function"):
    content: ContentIn
    name: str


MessageIn = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage


class Function(msgspec.Struct, kw_only=True):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """Other types than "function" are refused by name."""

    function: Function | None = None
    type: str = "function"


class FunctionName(msgspec.Struct, kw_only=True):
    name: str


class AllowedTools(msgspec.Struct, kw_only=True):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class NamedTool(msgspec.Struct, kw_only=True):
    """``allowed_tools`` belongs to the type of that name."""

    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None
    type: str = "function"


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class JsonSchema(msgspec.Struct, kw_only=True):
    name: str = ""
    schema: dict[str, Any] | bool | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """``schema`` beside "json_object" is llama-server's way to give one."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None


class Reasoning(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """OpenRouter's form of ``reasoning_effort``. A ``summary`` is not made: the reasoning itself is shown."""

    effort: Effort | None = None
    enabled: bool | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    summary: str | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


# ---- requests


class Sampled(Asked, kw_only=True):
    """What chat completions and completions share."""

    model: str
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Logits = None
    n: int | None = None
    seed: int | None = None
    stop: Stop = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    user: str | None = None
    # extensions
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_last_n: int | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    ignore_eos: bool | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    session: str | None = None
    cache: Literal["auto", "off", "read", "write"] | None = None
    parent_key: str | None = None
    keep_alive: KeepAlive = None


class ChatCompletionRequest(Sampled, kw_only=True):
    messages: list[MessageIn]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Function] | None = None
    function_call: Literal["none", "auto"] | FunctionName | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Effort | None = None
    modalities: list[str] | None = None
    audio: Any = None
    moderation: Any = None
    web_search_options: Any = None
    verbosity: Literal["low", "medium", "high"] | None = None
    # without influence on the answer
    metadata: dict[str, Any] | None = None
    prediction: Any = None
    prompt_cache_key: str | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    # extensions
    reasoning: Reasoning | None = None
    thinking_budget: Annotated[int, Meta(ge=0)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


# One text, one list of token ids, or a list of either kind.
Inputs = str | list[str | int | list[int]]


class CompletionRequest(Sampled, kw_only=True):
    prompt: Inputs = ""
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None


class EmbeddingRequest(Asked, kw_only=True):
    model: str
    input: Inputs
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    encoding_format: str | None = None
    user: str | None = None
    keep_alive: KeepAlive = None


# ---- answers


class CachedTokens(Said, kw_only=True):
    cached_tokens: int = 0


class ReasoningTokens(Said, kw_only=True):
    reasoning_tokens: int = 0


class Usage(Said, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class TopLogprob(Said, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class Logprob(TopLogprob, kw_only=True):
    top_logprobs: list[TopLogprob]


class Logprobs(Said, kw_only=True):
    content: list[Logprob] | None
    refusal: None = None


class CalledFunction(Said, kw_only=True, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class ToolCall(Said, kw_only=True):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class Answer(Said, kw_only=True):
    """``reasoning_content`` is where clients of local models look for the thinking."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


FinishReason = Literal["stop", "length", "tool_calls", "function_call"]


class Choice(Said, kw_only=True):
    index: int
    message: Answer
    finish_reason: FinishReason
    logprobs: Logprobs | None = None


class ChatCompletion(Said, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    system_fingerprint: str
    object: Literal["chat.completion"] = "chat.completion"
    service_tier: str | UnsetType = UNSET


class ToolCallDelta(Said, kw_only=True, omit_defaults=True):
    index: int
    id: str | None = None
    type: str | None = None
    function: CalledFunction | None = None


class Delta(Said, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChunkChoice(Said, kw_only=True):
    index: int
    delta: Delta
    finish_reason: FinishReason | None = None
    logprobs: Logprobs | None = None


class ChatCompletionChunk(Said, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    system_fingerprint: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET


class TextLogprobs(Said, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(Said, kw_only=True):
    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: TextLogprobs | None = None


class Completion(Said, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[TextChoice]
    system_fingerprint: str
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | UnsetType | None = UNSET


class Embedding(Said, kw_only=True):
    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(Said, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class Embeddings(Said, kw_only=True):
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


class Model(Said, kw_only=True):
    id: str
    created: int
    owned_by: str
    object: Literal["model"] = "model"


class Models(Said, kw_only=True):
    data: list[Model]
    object: Literal["list"] = "list"


class Problem(Said, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Failed(Said, kw_only=True):
    error: Problem
