"""Keyword arguments of ``complete``, ``stream`` and ``chat`` to the requests that go to a worker. Pure, but for drawing
seeds and ids."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from barrel_inference.config import Seconds
from barrel_inference.errors import InvalidRequestError
from barrel_inference.options import build, nearest
from barrel_inference.types import CacheMode, Constraint, Exactness, Message, OnFull, Request, Sampling

T = TypeVar("T")

Prompt = str | Sequence[int]
StrPath = str | os.PathLike[str]
Messages = Sequence[Message | Mapping[str, Any]]


class RequestOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a request may say beside its prompt and its sampling."""

    max_tokens: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    # When the context is full, give up the older half of what follows so many tokens (-1: the prompt; at most half the
    # context), read the rest again and go on. None: the answer ends there.
    shift_keep: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    stop: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=100)] = 0
    n: Annotated[int, Meta(ge=1, le=128)] = 1
    json_schema: str | None = None
    regex: str | None = None
    grammar: str | None = None
    choices: Annotated[tuple[str, ...], Meta(min_length=1)] | None = None
    start_after: str | None = None
    outside: tuple[str, Annotated[str, Meta(min_length=1)]] | None = None
    cache: CacheMode = "auto"
    exact: Exactness | None = None
    parent_key: str | None = None
    session: Annotated[str, Meta(min_length=1)] | None = None
    salt: str = ""
    on_full: OnFull = "queue"
    timeout_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    add_special: bool = True
    parse_special: bool = True
    keep_special: bool = False
    boundaries: tuple[Annotated[int, Meta(ge=0)], ...] = ()
    trace: Annotated[str, Meta(min_length=1, max_length=128)] = "req"  # begins the request's id, as logs show it


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a turn of a conversation may say beside its messages and what any request may say.

    ``tools`` in OpenAI's form; ``tool_choice``: auto, none, required, or the name of a tool; ``think`` None: as the
    model likes; ``think_budget`` in tokens; ``template``: further keywords for the chat template; ``chat_template``: in
    place of the model's own.
    """

    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: Annotated[str, Meta(min_length=1)] = "auto"
    parallel_tool_calls: bool = True
    think: bool | Literal["minimal", "low", "medium", "high", "max"] | None = None
    think_budget: Annotated[int, Meta(ge=0)] | None = None
    documents: tuple[dict[str, Any], ...] = ()
    template: dict[str, Any] = {}
    chat_template: str | None = None
    continue_final_message: bool = False


_CHAT = frozenset(ChatOptions.__struct_fields__)
_SAMPLING = frozenset(Sampling.__struct_fields__)
_OPTIONS = frozenset(RequestOptions.__struct_fields__)


def requests(prompt: Prompt, params: Mapping[str, Any]) -> list[Request]:
    """One request for each of ``n``. Raises InvalidRequestError for anything that is not allowed."""
    options, sampling = parse(params)
    base = f"{options.trace}_{secrets.token_hex(8)}"
    seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
    checked = check_prompt(prompt)
    constraint = _constraint(options)
    return [
        Request(
            id=base if options.n == 1 else f"{base}.{index}",
            prompt=checked,
            sampling=msgspec.structs.replace(sampling, seed=nth_seed(seed, index)),
            constraint=constraint,
            **{name: getattr(options, name) for name in _PASSED_ON},
        )
        for index in range(options.n)
    ]


def nth_seed(seed: int, index: int) -> int:
    """Of one of n generations; never out of range."""
    return seed + (index if seed < 0 else -index)


_PASSED_ON = sorted(_OPTIONS & set(Request.__struct_fields__))


def parse(params: Mapping[str, Any]) -> tuple[RequestOptions, Sampling]:
    """Raises InvalidRequestError naming the option, the value and what is allowed."""
    for name in params:
        if name not in _SAMPLING and name not in _OPTIONS:
            raise InvalidRequestError(f"unknown option {name!r}{nearest(name, _SAMPLING | _OPTIONS)}", option=name)
    values = {name: _loose(name, value) for name, value in params.items()}
    options = build(RequestOptions(), {k: v for k, v in values.items() if k in _OPTIONS}, error=InvalidRequestError)
    sampling = build(Sampling(), {k: v for k, v in values.items() if k in _SAMPLING}, error=InvalidRequestError)
    if options.top_logprobs:  # whoever wants to know the others wants to know
        options = msgspec.structs.replace(options, logprobs=True)
    return options, sampling


def chat(given: Mapping[str, Any]) -> tuple[ChatOptions, dict[str, Any], Constraint | None]:
    """The options of a turn, those of its generation, and the form wanted of its answer. Raises InvalidRequestError."""
    rest = {name: value for name, value in given.items() if name not in _CHAT}
    if (name := next((name for name in rest if name not in _SAMPLING | _OPTIONS), None)) is not None:
        raise InvalidRequestError(f"unknown option {name!r}{nearest(name, _CHAT | _SAMPLING | _OPTIONS)}", option=name)
    constraint = _constraint(parse(rest)[0])
    rest = {name: value for name, value in rest.items() if name not in Constraint.__struct_fields__}
    own = {name: value for name, value in given.items() if name in _CHAT}
    return build(ChatOptions(), own, error=InvalidRequestError), rest, constraint


def _loose(name: str, value: Any) -> Any:
    """The short forms that people write: one stop string, a schema as a mapping."""
    if name == "stop":
        return () if value is None else (value,) if isinstance(value, str) else value
    if name == "json_schema" and isinstance(value, Mapping):
        return _json(value)
    return value


def _json(schema: Mapping[str, Any]) -> str:
    try:
        return msgspec.json.encode(schema).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"json_schema is not JSON: {error}", option="json_schema") from None


def _constraint(options: RequestOptions) -> Constraint | None:
    given = {
        name: value
        for name in ("json_schema", "regex", "grammar", "choices")
        if (value := getattr(options, name)) is not None
    }
    if len(given) > 1:
        raise InvalidRequestError(f"at most one of {', '.join(given)} may be given", option=next(iter(given)))
    return Constraint(**given, start_after=options.start_after, outside=options.outside) if given else None


def check_prompt(prompt: Prompt) -> str | tuple[int, ...]:
    """Text that is Unicode, or token ids."""
    return check_text(prompt) if isinstance(prompt, str) else check_tokens(prompt)


def check_tokens(tokens: Sequence[int]) -> tuple[int, ...]:
    """Non-negative integers (the worker knows the vocabulary)."""
    try:
        return msgspec.convert(sequence(tokens), tuple[Annotated[int, Meta(ge=0, lt=2**31)], ...])
    except (msgspec.ValidationError, UnicodeError) as error:
        raise InvalidRequestError(f"token ids are expected: {error}", option="prompt") from None


def sequence(values: Iterable[T]) -> tuple[T, ...]:
    """Raises InvalidRequestError for what cannot be iterated, and for text and bytes."""
    if isinstance(values, str | bytes | bytearray) or not isinstance(values, Iterable):
        raise InvalidRequestError(f"a sequence is expected, not {type(values).__name__}")
    return tuple(values)


def check_text(text: str) -> str:
    """Raises InvalidRequestError for what is no text, and for a lone surrogate, which is no character."""
    if not isinstance(text, str):
        raise InvalidRequestError(f"text is expected, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the text holds a lone surrogate at character {error.start}", position=error.start
        ) from None
    return text


def check_path(path: StrPath) -> Path:
    """Raises InvalidRequestError for what cannot be one."""
    if isinstance(path, str | os.PathLike) and "\0" not in str(path):
        return Path(path)
    raise InvalidRequestError(f"a path is expected, not {path!r:.80}")


def check_flag(option: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{option}={value!r:.80} is not allowed: expected true or false", option=option)
    return value


def check_seconds(option: str, value: float) -> float:
    """Raises InvalidRequestError unless it is a number, finite and not negative."""
    try:
        return msgspec.convert(value, Seconds)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise InvalidRequestError(f"{option}={value!r:.80}: {error}", option=option) from None
