"""A loaded model in asyncio. Belongs to its runtime's event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from barrel_inference.aio import params
from barrel_inference.aio.params import Messages, Prompt
from barrel_inference.aio.stream import AsyncStream
from barrel_inference.errors import InvalidRequestError
from barrel_inference.types import CacheLookup, CacheReport, Completion, Embedding, ModelInfo
from barrel_inference.worker.supervisor import Supervisor

if TYPE_CHECKING:
    from barrel_inference.aio.chat import AsyncChatStream
    from barrel_inference.chat.events import Answer


class AsyncModel:
    """Handle of one loaded model; made by ``AsyncRuntime.load_model``.

    ``options`` are the fields of types.Sampling and aio.params.RequestOptions; whatever is wrong with them raises
    InvalidRequestError at the call.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    @property
    def id(self) -> str:
        """What it was loaded as."""
        return self._supervisor.options.id

    def info(self) -> ModelInfo:
        """A snapshot; asks nobody."""
        return self._supervisor.info()

    # ---- generating

    async def complete(self, prompt: Prompt, **options: Any) -> Completion:
        """Generate to the end."""
        return await self.stream(prompt, **options).result()

    def stream(self, prompt: Prompt, **options: Any) -> AsyncStream:
        """Generate chunk by chunk. The work begins with the first ``anext``."""
        requests = params.requests(prompt, options)

        def cancel() -> None:
            for request in requests:
                self._supervisor.cancel(request.id)

        return AsyncStream([self._supervisor.generate(request) for request in requests], cancel)

    async def chat(self, messages: Messages, **options: Any) -> Answer:
        """Answer a conversation. ``options`` are also those of params.ChatOptions: tools, think, …"""
        return await self.chat_stream(messages, **options).result()

    def chat_stream(self, messages: Messages, **options: Any) -> AsyncChatStream:
        """The same, event by event (chat.events). The work begins with the first ``anext``."""
        from barrel_inference.aio.chat import AsyncChatStream  # jinja2 would double the time to import the package

        return AsyncChatStream(self, messages, options)

    async def apply_template(self, messages: Messages, **options: Any) -> str:
        """The prompt that ``chat`` would read. ``options``: those of params.ChatOptions."""
        from barrel_inference.aio.chat import prompt_text

        return await prompt_text(self, messages, options)

    # ---- the rest

    async def embed(self, texts: str | Sequence[Prompt]) -> Embedding:
        """One L2-normalised vector of ``info().n_embd`` numbers per input (text or token ids). InvalidRequestError for
        an empty input, ContextExceededError for one too long, UnsupportedError where the model pools for ranking."""
        inputs: list[Prompt] = [texts] if isinstance(texts, str) else list(params.sequence(texts))
        reply = await self.call("embed", inputs=[params.check_prompt(each) for each in inputs])
        return msgspec.convert(reply, Embedding)

    async def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The ids of a text. ``add_special``: with what the vocabulary puts around a prompt; ``parse_special``: control
        tokens written in the text count as such. InvalidRequestError for a lone surrogate."""
        reply = await self.call(
            "tokenize",
            text=params.check_text(text),
            add_special=params.check_flag("add_special", add_special),
            parse_special=params.check_flag("parse_special", parse_special),
        )
        return msgspec.convert(reply, list[int])

    async def detokenize(self, tokens: Sequence[int], *, special: bool = True) -> str:
        """``special``: control tokens appear as text. Bytes that are no UTF-8 become U+FFFD."""
        checked = params.check_tokens(tokens)
        reply = await self.call("detokenize", tokens=checked, special=params.check_flag("special", special))
        return msgspec.convert(reply, str)

    async def prefill(self, prompt: Prompt, **options: Any) -> CacheReport:
        """Read a prompt into the cache without generating."""
        if "max_tokens" in options:
            raise InvalidRequestError("prefill takes no max_tokens", option="max_tokens")
        return (await self.complete(prompt, max_tokens=0, **options)).cache

    async def end_session(self, session: str) -> None:
        """Give up the sequence that requests with this ``session`` have kept."""
        await self.call("end_session", session=params.check_text(session))

    async def lookup(self, prompt: Prompt, *, salt: str = "") -> CacheLookup:
        """How much of a prompt the store would restore."""
        reply = await self.call("cache_lookup", prompt=params.check_prompt(prompt), salt=params.check_text(salt))
        return msgspec.convert(reply, CacheLookup)

    async def pin(self, prompt: Prompt, *, salt: str = "") -> int:
        """Keep what is stored of a prompt longer than anything else; tokens pinned. CacheError when there is none."""
        reply = await self.call("cache_pin", prompt=params.check_prompt(prompt), salt=params.check_text(salt))
        return msgspec.convert(reply, int)

    async def unpin(self, prompt: Prompt, *, salt: str = "") -> bool:
        """Whether it was pinned."""
        reply = await self.call("cache_unpin", prompt=params.check_prompt(prompt), salt=params.check_text(salt))
        return msgspec.convert(reply, bool)

    async def call(self, op: str, **args: Any) -> Any:
        """Ask the worker one of the questions of worker.child.calls; the answer is plain values."""
        return await self._supervisor.call(op, **args)
