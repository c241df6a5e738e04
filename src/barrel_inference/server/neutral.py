"""What the HTTP dialects say to the service and hear from it: one form for Ollama, OpenAI and Anthropic. Values only.

A dialect translates its own wire types to these and these back to its own; the service (``server.service``) implements
``Service`` over loaded models. ``server.chat`` is the part of it that turns one ChatRequest and one model into events.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, Literal, Protocol

import msgspec

from barrel_inference.chat.events import (
    AnswerEnd,
    CallArguments,
    CallEnded,
    CallStarted,
    Content,
    Event,
    Finished,
    Reasoning,
)
from barrel_inference.types import Chunk, Constraint, Embedding, Message, Value

__all__ = [
    "TOOL_NAME",
    "AnswerEnd",
    "CallArguments",
    "CallEnded",
    "CallStarted",
    "ChatRequest",
    "CompletionRequest",
    "Content",
    "EmbedRequest",
    "Event",
    "Finished",
    "KeepAlive",
    "ModelCard",
    "Reasoning",
    "Service",
    "Think",
    "ToolChoice",
    "ToolName",
]

KeepAlive = str | float | int | None  # as the client wrote it; None: not given
Think = bool | Literal["minimal", "low", "medium", "high", "max"] | None  # None: as the model likes

TOOL_NAME = "^[a-zA-Z0-9_-]{1,128}$"  # in OpenAI's and Anthropic's dialects
ToolName = Annotated[str, msgspec.Meta(pattern=TOOL_NAME)]


class ToolChoice(Value, frozen=True):
    """``name`` is set with "named" only."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None


class ChatRequest(Value, frozen=True):
    """``options`` holds what the client said and nothing else, under the names of types.Sampling and of
    aio.params.RequestOptions; the model's own parameters and then the defaults fill the rest.
    ``tools`` have OpenAI's form: {"type": "function", "function": {"name", "description", "parameters", "strict"}}.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    constraint: Constraint | None = None  # of the answer's content; begins after the thinking
    think: Think = None
    think_if_able: bool = False  # a model that cannot answers without; the answer's head says so
    think_budget: int | None = None  # tokens; then the thinking is ended for the model
    documents: tuple[dict[str, Any], ...] = ()
    template: dict[str, Any] = msgspec.field(default_factory=dict)  # further keywords for the chat template
    chat_template: str | None = None  # in place of the model's own: Jinja, or Ollama's Go template
    continue_final: bool = False  # the last message is the beginning of the answer
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    truncate: bool = False  # drop the oldest messages when the prompt does not fit, instead of context_exceeded
    num_keep: int | None = None  # and when that is not enough, its middle, behind so many tokens (-1: all that fit)
    context: tuple[int, ...] = ()  # tokens of an earlier conversation, before the prompt
    keep_alive: KeepAlive = None


class CompletionRequest(Value, frozen=True):
    """Text in, text out, no template. ``suffix`` asks to fill in the middle."""

    model: str
    prompt: str | tuple[int, ...]
    suffix: str | None = None
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    truncate: bool = False  # leave out the middle of a prompt that does not fit, instead of context_exceeded
    keep_alive: KeepAlive = None


class EmbedRequest(Value, frozen=True):
    """``dimensions``: cut to that many and normalise again. Inputs that do not fit are cut with ``truncate``."""

    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    dimensions: int | None = None
    truncate: bool = False
    keep_alive: KeepAlive = None


class ModelCard(Value, frozen=True):
    """A model that can be asked for. ``created``: seconds since 1970."""

    id: str
    created: int
    owned_by: str = "library"
    n_ctx: int | None = None


class Service(Protocol):
    """What the dialects need. Everything raises BarrelError; of the iterators that happens before the first event
    whenever the request itself is at fault. Closing an iterator stops the work."""

    def chat(self, request: ChatRequest) -> AsyncGenerator[Event, None]: ...

    def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk, None]: ...

    async def embed(self, request: EmbedRequest) -> Embedding: ...

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str: ...

    async def count_tokens(self, request: ChatRequest) -> int:
        """Of the prompt that ``chat`` would read."""

    async def models(self) -> list[ModelCard]: ...

    async def model(self, name: str) -> ModelCard:
        """Raises ModelNotFoundError."""
