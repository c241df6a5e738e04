"""How commands speak: JSON or text on standard output, one line with the cure on standard error, exit codes. Pure but
for the writing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

import msgspec
import typer

from barrel_inference.errors import (
    BarrelError,
    ConfigError,
    InvalidModelError,
    InvalidNameError,
    InvalidRequestError,
    ModelfileError,
    ModelNotFoundError,
    NotLoadedError,
    NotStoredError,
    PullError,
    RequestError,
    TierError,
    UnreachableError,
)

EXIT_FAILED = 1
EXIT_USAGE = 2  # a wrong option or value
EXIT_NOT_FOUND = 3  # no such model, file or prompt
EXIT_REFUSED = 4  # the model was asked and said no: too long, unusable schema, timed out
EXIT_UNREACHABLE = 5  # no server, or a download failed
EXIT_INTERRUPTED = 130

_EXIT_CODES: tuple[tuple[type[BarrelError], int], ...] = (
    (ConfigError, EXIT_USAGE),
    (TierError, EXIT_USAGE),
    (InvalidNameError, EXIT_USAGE),
    (ModelfileError, EXIT_USAGE),
    (ModelNotFoundError, EXIT_NOT_FOUND),
    (InvalidModelError, EXIT_NOT_FOUND),
    (NotLoadedError, EXIT_NOT_FOUND),
    (NotStoredError, EXIT_NOT_FOUND),
    (PullError, EXIT_UNREACHABLE),
    (UnreachableError, EXIT_UNREACHABLE),
    (RequestError, EXIT_REFUSED),
)

_CURES = {
    "unauthorized": "the commands send the key in BARREL_INFERENCE_API_KEY",
    "model_not_found": "barrel-inference pull NAME fetches it, barrel-inference list shows what is here",
    "load_failed": "barrel-inference doctor shows what was compiled in and how much memory is free",
    "out_of_memory": "take a smaller quantization, or less context with --ctx",
    "decode_timeout": "the machine is slow or busy; context_opts.decode_budget_ms is the limit",
    "context_exceeded": "raise --ctx, or shorten the prompt",
    "cannot_listen": "if another process listens there, end it or choose another address with --port or --host",
    "tier_unusable": "name a directory that can be written",
    "disk_full": "barrel-inference gc removes what no model uses",
}

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]


def exit_code(error: BarrelError) -> int:
    if isinstance(error, InvalidRequestError) and "option" in error.details:  # a wrong value, said in a flag
        return EXIT_USAGE
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), EXIT_FAILED)


def one_line(error: BarrelError) -> str:
    """The message and, where one is known, the cure."""
    message = printable(" ".join(str(error).split()))
    cure = _CURES.get(error.code)
    return f"{message}  ({cure})" if cure else message


def printable(text: str) -> str:
    """Without what would move the cursor or do worse: names and words come from strangers."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(_whole(value)), indent=2))


def _whole(value: Any) -> Any:
    """With the fields that have their default values, which structs leave out on the wire."""
    match value:
        case msgspec.Struct():
            return {name: _whole(getattr(value, name)) for name in value.__struct_fields__}
        case dict():
            return {key: _whole(each) for key, each in value.items()}
        case list() | tuple():
            return [_whole(each) for each in value]
        case _:
            return value


def table(rows: list[tuple[str, ...]], numbers: Collection[int] = ()) -> str:
    """Columns as wide as their widest cell; those of ``numbers`` stand on the right."""
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    padded = ([f"{cell:{'><'[i not in numbers]}{widths[i]}}" for i, cell in enumerate(row)] for row in rows)
    return "\n".join("   ".join(cells).rstrip() for cells in padded)


def counted(count: int, noun: str) -> str:
    """1 -> '1 object', 1200 -> '1,200 objects'."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def human_bytes(count: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
