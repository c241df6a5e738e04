"""Prompt text to tokens, so that what a model wrote comes back as the tokens that it wrote.

Intake thread, but for ``completed`` (also the engine thread). Owner of the texts of the requests in progress, and of
the one thread that writes the render memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from barrel_inference.config import BLOCK_TOKENS
from barrel_inference.engine.backend import Backend
from barrel_inference.engine.checkpoints import Checkpoints
from barrel_inference.engine.requests.prepare import Tokenised
from barrel_inference.kvcache.render import RenderMemory
from barrel_inference.types import Completion, Request

REPLACEMENT = "\ufffd"  # stands for bytes that were no text


class Prompts:
    def __init__(self, backend: Backend, store: Checkpoints, *, resume_wait_s: float) -> None:
        self._backend = backend
        self._store = store
        self._resume_wait_s = resume_wait_s
        self._wants_boundaries = backend.info.is_recurrent or backend.info.is_hybrid
        self._requests: dict[str, Request] = {}  # with a text prompt, in progress
        self._memory = _open_memory(store)
        self._writer = ThreadPoolExecutor(1, "render memory")
        self._last_write: Future[None] | None = None

    def tokenise(self, request: Request) -> Tokenised:
        prompt = request.prompt
        assert isinstance(prompt, str)
        head, rest = self._known_head(request, prompt)
        tokens = head + self._backend.tokenize(
            rest.encode(), add_special=request.add_special and not head, parse_special=request.parse_special
        )
        if not self._wants_boundaries:
            return Tokenised(tokens, ())
        return Tokenised(tokens, self._positions(prompt, tokens, request.boundaries))

    # ---- what was generated

    def follow(self, request: Request) -> None:
        """Remember what will be generated for it, once it is ``completed``."""
        if self._memory is not None and isinstance(request.prompt, str) and request.cache in ("auto", "write"):
            self._requests[request.id] = request

    def completed(self, request_id: str, completion: Completion | None) -> None:
        """A request has ended (None: by an error)."""
        request = self._requests.pop(request_id, None)
        if request is not None and completion is not None and self._is_whole(request, completion):
            self._last_write = self._writer.submit(self._remember, request, completion)

    def _is_whole(self, request: Request, completion: Completion) -> bool:
        """Whether its text says all that its tokens say, so that one may stand for the other."""
        return (
            bool(completion.text)
            and completion.stop_text is None
            and REPLACEMENT not in completion.text
            and len(completion.prompt_tokens) + len(completion.tokens) >= BLOCK_TOKENS
            and (request.keep_special or not any(map(self._backend.is_control, completion.tokens)))
        )

    def _remember(self, request: Request, completion: Completion) -> None:
        assert self._memory is not None
        tokens = completion.prompt_tokens + completion.tokens
        self._memory.remember(f"{request.prompt}{completion.text}", tokens, salt=_salt(request))

    # ---- what is known

    def _known_head(self, request: Request, prompt: str) -> tuple[list[int], str]:
        """Tokens that stand for the beginning of the prompt, and the text behind them."""
        if request.cache not in ("auto", "read"):
            return [], prompt
        if request.parent_key is not None and (head := self._parent(request.parent_key, prompt)):
            return head
        if self._memory is None:
            return [], prompt
        if self._last_write is not None:
            self._last_write.result()
        known = self._memory.match(prompt, salt=_salt(request))
        return (list(known.tokens), prompt[known.n_chars :]) if known else ([], prompt)

    def _parent(self, key: str, prompt: str) -> tuple[list[int], str] | None:
        tokens = self._store.tokens_behind(key, self._resume_wait_s) or ()
        for first in (0, 1):  # the token that add_special adds is not in the text
            pieces = (self._backend.piece(token, special=True) for token in tokens[first:])
            text = b"".join(pieces).decode(errors="replace")
            if text and prompt.startswith(text):
                return list(tokens), prompt[len(text) :]
        return None

    def _positions(self, prompt: str, tokens: Sequence[int], boundaries: Sequence[int]) -> tuple[int, ...]:
        """Character offsets as token positions, rounded down; a tokenizer that adds a space is off by that, which
        only moves a state by a token."""
        ends = [len(prompt[:boundary].encode()) for boundary in sorted(boundaries)]
        positions: list[int] = []
        offset = 0
        for index, token in enumerate(tokens):
            offset += len(self._backend.piece(token, special=True))
            while len(positions) < len(ends) and offset >= ends[len(positions)]:
                positions.append(index + 1 if offset == ends[len(positions)] else index)
        return tuple(positions)


def _salt(request: Request) -> str:
    """The same text means other tokens when special ones are added or read otherwise."""
    return f"{request.add_special:d}{request.parse_special:d}{request.salt}"


def _open_memory(checkpoints: Checkpoints) -> RenderMemory | None:
    """Beside the blocks that it helps to find; none where nothing is saved."""
    folder = checkpoints.memory_folder
    return RenderMemory(folder / "render", max_bytes=checkpoints.memory_bytes) if folder else None
