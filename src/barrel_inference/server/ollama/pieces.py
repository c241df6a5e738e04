"""Neutral events to the pieces of an Ollama answer, streamed or as one. A Writer owns the state of one answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from barrel_inference.server import neutral
from barrel_inference.server.ollama import wire
from barrel_inference.types import Completion, TokenLogprob

Piece = wire.Generated | wire.Answered
Now = Callable[[], datetime]


def ns(seconds: float) -> int:
    return int(seconds * 1e9)


def utc_now() -> datetime:
    return datetime.now(UTC)


def timestamp(at: datetime) -> str:
    """RFC 3339 in UTC, as Go writes it."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Writer:
    """The pieces of one answer of ``model``. ``generate`` chooses the shape of /api/generate instead of /api/chat's.
    ``now`` dates them; ``clock`` measures, since dates may be set back meanwhile."""

    def __init__(
        self,
        model: str,
        *,
        generate: bool = False,
        with_context: bool = False,
        now: Now = utc_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._generate = generate
        self._with_context = with_context
        self._now = now
        self._clock = clock
        self._started = clock()
        self._call: tuple[neutral.CallStarted, list[str]] | None = None

    def text(self, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> Piece:
        return self._piece(text, logprobs=[logprob(each) for each in logprobs] or None)

    def event(self, event: neutral.Event) -> Piece | None:
        """The piece that an event makes. Calls come whole, so most of their events make none."""
        match event:
            case neutral.Content(text=text, logprobs=logprobs):
                return self.text(text, logprobs)
            case neutral.Reasoning(text=text):
                return self._piece(thinking=text)
            case neutral.CallStarted():
                self._call = (event, [])
            case neutral.CallArguments(text=text) if self._call is not None:
                self._call[1].append(text)
            case neutral.CallEnded(unfinished=text) if text:
                self._call = None
                return self.text(text)
            case neutral.CallEnded():
                return self._whole_call()
        return None

    def final(self, completion: Completion, *, load_s: float, **more: Any) -> Piece:
        """The last piece: why it ended, counts and times, and with ``more`` what was not as it was asked for."""
        context = [*completion.prompt_tokens, *completion.tokens] if self._with_context else None
        reason = "stop" if completion.finish_reason in ("stop", "cancelled") else "length"
        return self._done(reason, context=context, **metrics(completion, self._elapsed_s(), load_s), **more)

    def only(self, reason: str, **more: Any) -> Piece:
        """The whole answer to a request that only loads or unloads."""
        return self._done(reason, **more)

    def debug(self, prompt: str) -> Piece:
        return self._piece(debug_info={"rendered_template": prompt})

    def _whole_call(self) -> Piece | None:
        if self._call is None:
            return None
        (started, arguments), self._call = self._call, None
        function = wire.FunctionCall(
            name=started.name, arguments=msgspec.json.decode("".join(arguments) or "{}"), index=started.call
        )
        return self._piece(tool_calls=[wire.ToolCall(id=started.id, function=function)])

    def _done(self, reason: str, **more: Any) -> Piece:
        return self._piece(done=True, done_reason=reason, **more)

    def _piece(
        self,
        text: str = "",
        *,
        thinking: str | None = None,
        tool_calls: list[wire.ToolCall] | None = None,
        done: bool = False,
        context: list[int] | None = None,
        **more: Any,
    ) -> Piece:
        base = {"model": self._model, "created_at": timestamp(self._now()), "done": done, **more}
        if self._generate:
            return wire.Generated(response=text, thinking=thinking, tool_calls=tool_calls, context=context, **base)
        said = wire.AnswerMessage(role="assistant", content=text, thinking=thinking, tool_calls=tool_calls)
        return wire.Answered(message=said, **base)

    def _elapsed_s(self) -> float:
        return self._clock() - self._started


def metrics(completion: Completion, total_s: float, load_s: float) -> dict[str, Any]:
    usage, times, cache = completion.usage, completion.timings, completion.cache
    report = {"kind": cache.kind, "restored_tokens": cache.restored_tokens, "tier": cache.tier}
    return {
        "total_duration": ns(total_s),
        "load_duration": ns(load_s),
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_cached_count": usage.cached_tokens,
        "prompt_eval_duration": ns(times.restore_s + times.prefill_s),
        "eval_count": usage.completion_tokens,
        "eval_duration": ns(times.decode_s),
        "shifted_tokens": completion.shifted_tokens,
        "finish_key": completion.finish_key,
        "cache": {name: value for name, value in report.items() if value is not None},
    }


def logprob(known: TokenLogprob) -> wire.Logprob:
    top = [logprob(each) for each in known.top]
    return wire.Logprob(token=known.text, logprob=known.logprob, bytes=list(known.bytes), top_logprobs=top)


def joined(pieces: list[Piece]) -> Piece:
    """One answer of all its pieces: text, thinking, calls and logprobs one after the other, the rest from the last."""
    last = pieces[-1]
    logprobs = [each for piece in pieces for each in piece.logprobs or ()] or None
    if isinstance(last, wire.Answered):
        messages = [piece.message for piece in pieces if isinstance(piece, wire.Answered)]
        said = wire.AnswerMessage(
            role="assistant", content="".join(message.content for message in messages), **_joined_parts(messages)
        )
        return msgspec.structs.replace(last, message=said, logprobs=logprobs)
    generated = [piece for piece in pieces if isinstance(piece, wire.Generated)]
    text = "".join(piece.response for piece in generated)
    return msgspec.structs.replace(last, response=text, logprobs=logprobs, **_joined_parts(generated))


def _joined_parts(parts: list[wire.AnswerMessage] | list[wire.Generated]) -> dict[str, Any]:
    thinking = "".join(part.thinking or "" for part in parts)
    calls = [call for part in parts for call in part.tool_calls or ()]
    return {"thinking": thinking or None, "tool_calls": calls or None}
