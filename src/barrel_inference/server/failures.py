"""One table from error codes to HTTP status, and what of an error a client may see. Pure."""

from __future__ import annotations

import re
from pathlib import Path

from barrel_inference.errors import BarrelError, DiskFullError, ExhaustedError
from barrel_inference.files import is_full

INTERNAL = 500
ERROR_CODE = "x-error-code"  # header of every failure: the class of the error, which statuses and dialects know less of
WRONG_OPTION = "x-wrong-option"  # header of an answer to a request with a wrong value
_STATUS = {
    "invalid_option": 400,
    "invalid_request": 400,
    "invalid_schema": 400,
    "context_exceeded": 400,
    "template_error": 400,
    "unsupported": 400,
    "no_weights": 400,
    "invalid_name": 400,
    "invalid_modelfile": 400,
    "modelfile_directive_not_supported": 400,
    "invalid_model_file": 400,
    "cache_error": 400,
    "tier_mismatch": 400,
    "tier_unknown": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "model_not_found": 404,
    "not_found": 404,
    "not_stored": 404,
    "not_loaded": 503,  # any more: models are loaded by asking for them
    "method_not_allowed": 405,
    "already_loaded": 409,
    "too_large": 413,
    "queue_full": 429,
    "seq_capacity": 429,
    "timeout": 504,
    "decode_timeout": 504,
    "out_of_memory": 507,
    "disk_full": 507,
    "cache_full": 507,
    "shutting_down": 503,
    "worker_died": 503,
    "locked": 503,
    "exhausted": 503,
    "pull_failed": 502,
    "digest_mismatch": 400,
}
_ROOTS = "|".join(sorted(re.escape(entry.name) for entry in Path("/").iterdir() if entry.is_dir()))
_PATH = re.compile(rf"(?<![\w.:/])/(?:{_ROOTS})/(?:[^\s'\"/]+/)*([^\s'\"/:,;]+)")


class ServingError(BarrelError):
    """Of the server alone: without one nobody meets it."""


class UnauthorizedError(ServingError):
    code = "unauthorized"


class ForbiddenError(ServingError):
    code = "forbidden"


class NotFoundError(ServingError):
    code = "not_found"


class MethodNotAllowedError(ServingError):
    code = "method_not_allowed"


class TooLargeError(ServingError):
    code = "too_large"


class ShuttingDownError(ServingError):
    code = "shutting_down"


def status(error: BarrelError) -> int:
    """A worker that died or stalled before it was ready is as little the request's fault as one that died later."""
    if error.code == "load_failed" and (error.details.get("died") or error.details.get("stalled")):
        return 503
    return _STATUS.get(error.code, INTERNAL)


def headers(error: BarrelError) -> dict[str, str]:
    """``Retry-After`` in whole seconds where trying again makes sense; the end of the connection where it must be; the
    option that was wrong and the error's code, for which not every dialect's body has a place."""
    found = {ERROR_CODE: error.code}
    if error.code == "too_large" or error.details.get("unread"):
        found["connection"] = "close"  # the rest of the body is not read
    if status(error) in (429, 503):
        found["retry-after"] = str(max(1, round(error.details.get("retry_after_s", 1))))
    option = error.details.get("option")
    if status(error) == 400 and isinstance(option, str) and option.isascii() and option.isprintable():
        found[WRONG_OPTION] = option[:100]
    return found


def public(error: BarrelError) -> str:
    """The message without the directories of this machine; a path keeps its last component."""
    return _PATH.sub(r"\1", error.message)


def of(error: BaseException) -> BarrelError:
    """What a client is told of any exception: of a bug only that there was one (the log has the rest)."""
    if isinstance(error, BarrelError):
        return error
    if isinstance(error, OSError) and is_full(error):
        return DiskFullError("no space is left on the server's disk")
    return ExhaustedError.of(error) or BarrelError(
        "internal error: the server's log has the details under this request's id"
    )
