"""An error as Ollama says it: with its words and statuses where clients know them. Pure."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from barrel_inference.errors import BarrelError, InvalidRequestError
from barrel_inference.server import failures
from barrel_inference.server.http import plain

TOO_LONG = (
    "the prompt is longer than the context length currently available to the model; shorten the prompt, adjust the"
    " context length in settings, or use a model with a longer context length"
)


def failure(error: BarrelError) -> Response:
    return plain.failure(error, words(error))


def embed_failure(error: BarrelError) -> Response:
    """The embedding routes have words of their own."""
    if error.code == "context_exceeded":
        error = InvalidRequestError("the input length exceeds the context length")
    if name := _unknown(error):
        return plain.failure(error, f'model "{name}" not found, try pulling it first')
    return failure(error)


def copy_failure(error: BarrelError) -> Response:
    """Of a source, in double quotes."""
    if name := _unknown(error):
        return plain.failure(error, f'model "{name}" not found')
    return failure(error)


def line(error: BarrelError) -> bytes:
    """The last line of a stream that failed. With the code of what a command would have met without a server, too:
    there is no status and no header any more."""
    code = None if isinstance(error, failures.ServingError) else error.code
    return msgspec.json.encode(plain.Failed(words(error), code)) + b"\n"


def words(error: BarrelError) -> str:
    match error.code:
        case "context_exceeded":
            numbers = [error.details.get(name) for name in ("n_prompt_tokens", "n_ctx")]
            return TOO_LONG + (f" ({numbers[0]} tokens, {numbers[1]} are available)" if all(numbers) else "")
        case "model_not_found" if name := _unknown(error):
            return f"model '{name}' not found"
        case _:
            return failures.public(error)


def _unknown(error: BarrelError) -> str:
    """The name that nobody knows, as the client wrote it, where there is nothing more to say of it; else empty."""
    name = str(error.details.get("model", ""))
    is_all = error.code == "model_not_found" and error.message == f"model '{name}' not found"
    return name[:200] if is_all else ""
