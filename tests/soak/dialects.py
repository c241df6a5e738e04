"""One question in each API: the body that asks it, and what of the answer is text, an error, or the end. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

Json = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """Greedy, so that it has one answer. ``raw``: a text to go on with; otherwise a message of a chat."""

    model: str
    text: str
    n_tokens: int
    raw: bool = False


class Piece(NamedTuple):
    """Of a streamed answer."""

    text: str = ""
    end: bool = False
    error: str = ""


@dataclass(frozen=True)
class Dialect:
    """``error(body)`` is the message of an error in this dialect's shape; it raises KeyError for anything else."""

    name: str
    path: str
    body: Callable[[Question], Json]
    text: Callable[[Json], str]
    piece: Callable[[bytes], Piece]
    error: Callable[[Json], str]


def dialects_of(question: Question) -> tuple[Dialect, ...]:
    return (OLLAMA_RAW, OPENAI_RAW) if question.raw else (OLLAMA, OPENAI, ANTHROPIC)


# ---- Ollama


def _ollama_options(question: Question) -> Json:
    return {"model": question.model, "options": {"temperature": 0, "num_predict": question.n_tokens}}


def _messages(question: Question) -> list[Json]:
    return [{"role": "user", "content": question.text}]


def _ollama_error(body: Json) -> str:
    return str(body["error"])


def _ollama_piece(line: bytes) -> Piece:
    body = json.loads(line)
    if "error" in body:
        return Piece(error=_ollama_error(body))
    text = body["response"] if "response" in body else body["message"]["content"]
    return Piece(text, end=body["done"])


OLLAMA = Dialect(
    "ollama",
    "/api/chat",
    lambda question: {**_ollama_options(question), "messages": _messages(question)},
    lambda body: str(body["message"]["content"]),
    _ollama_piece,
    _ollama_error,
)
OLLAMA_RAW = Dialect(
    "ollama raw",
    "/api/generate",
    lambda question: {**_ollama_options(question), "prompt": question.text, "raw": True},
    lambda body: str(body["response"]),
    _ollama_piece,
    _ollama_error,
)


# ---- OpenAI


def _openai_error(body: Json) -> str:
    return f"{body['error']['type']}: {body['error']['message']}"


def _openai_piece(line: bytes) -> Piece:
    data = line.removeprefix(b"data: ")
    if data == b"[DONE]":
        return Piece(end=True)
    if not line.startswith(b"data: "):
        return Piece()
    body = json.loads(data)
    if "error" in body:
        return Piece(error=_openai_error(body))
    (choice,) = body["choices"]
    return Piece(choice["text"] if "text" in choice else choice["delta"].get("content") or "")


def _limited(question: Question) -> Json:
    return {"model": question.model, "temperature": 0, "max_tokens": question.n_tokens}


OPENAI = Dialect(
    "openai",
    "/v1/chat/completions",
    lambda question: {**_limited(question), "messages": _messages(question)},
    lambda body: str(body["choices"][0]["message"]["content"]),
    _openai_piece,
    _openai_error,
)
OPENAI_RAW = Dialect(
    "openai raw",
    "/v1/completions",
    lambda question: {**_limited(question), "prompt": question.text},
    lambda body: str(body["choices"][0]["text"]),
    _openai_piece,
    _openai_error,
)


# ---- Anthropic


def _anthropic_piece(line: bytes) -> Piece:
    if not line.startswith(b"data: "):
        return Piece()
    body = json.loads(line[6:])
    match body["type"]:
        case "error":
            return Piece(error=_openai_error(body))  # the same fields
        case "message_stop":
            return Piece(end=True)
        case "content_block_delta":
            return Piece(body["delta"].get("text", ""))
    return Piece()


ANTHROPIC = Dialect(
    "anthropic",
    "/v1/messages",
    lambda question: {**_limited(question), "messages": _messages(question)},
    lambda body: "".join(block.get("text", "") for block in body["content"]),
    _anthropic_piece,
    _openai_error,
)
