"""Every error the product raises on purpose. Each class has a stable ``code``; it crosses the worker border and maps
to each HTTP dialect.

BarrelError                     internal
├── ConfigError                 invalid_option        option, value, allowed
├── ModelError
│   ├── InvalidModelError       invalid_model_file    missing, not GGUF, malformed, truncated
│   ├── DamagedModelError       model_damaged         the same of the files of an installed model
│   ├── LoadError               load_failed           the worker could not become ready
│   ├── AlreadyLoadedError      already_loaded
│   ├── NotLoadedError          not_loaded
│   ├── NoWeightsError          no_weights            vocab_only models only tokenize
│   └── OutOfMemoryError        out_of_memory         the model does not fit
├── TierError
│   ├── TierMismatchError       tier_mismatch
│   ├── TierUnknownError        tier_unknown
│   └── TierUnusableError       tier_unusable
├── RequestError
│   ├── InvalidRequestError     invalid_request
│   ├── ContextExceededError    context_exceeded      n_prompt_tokens, n_ctx
│   ├── SchemaError             invalid_schema        an unusable JSON schema, regex or grammar
│   ├── TemplateError           template_error        the chat template refused or failed
│   ├── UnsupportedError        unsupported           this model cannot do what was asked
│   ├── SeqCapacityError        seq_capacity          on_full="error" and no free sequence
│   ├── QueueFullError          queue_full
│   ├── RequestTimeoutError     timeout               timeout_s ran out
│   ├── DecodeTimeoutError      decode_timeout        one decode exceeded decode_budget_ms
│   ├── KVFullError             kv_full               no KV room even alone
│   ├── DecodeError             decode_failed
│   └── WorkerDiedError         worker_died
├── CacheError                  cache_error           export, import, pin
│   ├── NotStoredError          not_stored            nothing of the prompt is there
│   └── CacheFullError          cache_full            no room for what is exported or imported
├── ExhaustedError              exhausted             no process, thread or descriptor is left: it may pass
├── UnreachableError            unreachable           no server answers
├── ListenError                 cannot_listen         another process has the address
└── RegistryError               registry_error
    ├── InvalidNameError        invalid_name
    ├── ModelNotFoundError      model_not_found
    ├── ManifestError           invalid_manifest
    ├── ModelfileError          invalid_modelfile     line
    ├── DirectiveError          modelfile_directive_not_supported  directive, line
    ├── PullError               pull_failed           status
    ├── DigestMismatchError     digest_mismatch       expected, actual
    ├── DiskFullError           disk_full             needed, free
    ├── ReadOnlyError           read_only
    └── LockedError             locked                path: another process holds it
"""

from __future__ import annotations

import errno
import os
from typing import Any, ClassVar, Self

RETRY_S = 5  # until some of what others hold is given back
_WANTS = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_by_code: dict[str, type[BarrelError]] = {}


class BarrelError(Exception):
    """Base class. ``message`` is one line for people; ``details`` are plain values for programs."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __init_subclass__(cls) -> None:
        if "code" in cls.__dict__:
            _by_code[cls.code] = cls

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return from_dict, (self.to_dict(),)

    def to_dict(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "details": self.details}

    @classmethod
    def wrap(cls, error: BaseException) -> BarrelError | Self:
        """The error itself when it is one of ours, or that of a want; otherwise one of this class that names it."""
        if isinstance(error, BarrelError):
            return error
        return ExhaustedError.of(error) or cls(f"{type(error).__name__}: {error}")


_by_code[BarrelError.code] = BarrelError


def os_reason(error: OSError) -> str:
    """The system's words for it, to stand inside a sentence of ours."""
    return (error.strerror or str(error)).lower()


def from_dict(value: dict[str, Any]) -> BarrelError:
    """The inverse of ``to_dict``; an unknown code becomes a plain BarrelError."""
    cls = _by_code.get(value["code"], BarrelError)
    return cls(value["message"], **value.get("details", {}))


class ConfigError(BarrelError):
    code = "invalid_option"


class ModelError(BarrelError):
    pass


class InvalidModelError(ModelError):
    """``message`` has the file's name, since others read it; ``str`` is for the owner and has the whole path."""

    code = "invalid_model_file"

    def __str__(self) -> str:
        path = str(self.details.get("path", ""))
        name = os.path.basename(path)  # noqa: PTH119 - imported by everybody
        if not name or not self.message.startswith(f"{name}:"):
            return self.message
        return path + self.message.removeprefix(name)


class DamagedModelError(ModelError):
    code = "model_damaged"


class LoadError(ModelError):
    code = "load_failed"


class AlreadyLoadedError(ModelError):
    code = "already_loaded"


class NotLoadedError(ModelError):
    code = "not_loaded"


class NoWeightsError(ModelError):
    code = "no_weights"


class OutOfMemoryError(ModelError):
    code = "out_of_memory"


class TierError(BarrelError):
    pass


class TierMismatchError(TierError):
    code = "tier_mismatch"


class TierUnknownError(TierError):
    code = "tier_unknown"


class TierUnusableError(TierError):
    code = "tier_unusable"


class RequestError(BarrelError):
    pass


class InvalidRequestError(RequestError):
    code = "invalid_request"


class ContextExceededError(RequestError):
    code = "context_exceeded"


class SchemaError(RequestError):
    code = "invalid_schema"


class TemplateError(RequestError):
    code = "template_error"


class UnsupportedError(RequestError):
    code = "unsupported"


class SeqCapacityError(RequestError):
    code = "seq_capacity"


class QueueFullError(RequestError):
    code = "queue_full"


class RequestTimeoutError(RequestError):
    code = "timeout"


class DecodeTimeoutError(RequestError):
    code = "decode_timeout"


class KVFullError(RequestError):
    code = "kv_full"


class DecodeError(RequestError):
    code = "decode_failed"


class WorkerDiedError(RequestError):
    code = "worker_died"


class CacheError(BarrelError):
    code = "cache_error"


class NotStoredError(CacheError):
    code = "not_stored"


class CacheFullError(CacheError):
    code = "cache_full"


class ExhaustedError(BarrelError):
    """The system had no process, thread, descriptor or page to give."""

    code = "exhausted"

    @classmethod
    def of(cls, error: BaseException) -> ExhaustedError | None:
        """What ``error`` is when it is such a want; otherwise None."""
        is_want = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _WANTS)
        if not is_want and not (isinstance(error, RuntimeError) and "can't start new thread" in str(error)):
            return None
        reason = (getattr(error, "strerror", None) or str(error) or "out of memory").lower()
        return cls(f"the system has too few processes, threads, files or pages left: {reason}", retry_after_s=RETRY_S)


class UnreachableError(BarrelError):
    code = "unreachable"


class ListenError(BarrelError):
    code = "cannot_listen"


class RegistryError(BarrelError):
    code = "registry_error"


class InvalidNameError(RegistryError):
    code = "invalid_name"


class ModelNotFoundError(RegistryError):
    code = "model_not_found"


class ManifestError(RegistryError):
    code = "invalid_manifest"


class ModelfileError(RegistryError):
    code = "invalid_modelfile"


class DirectiveError(ModelfileError):
    code = "modelfile_directive_not_supported"


class PullError(RegistryError):
    code = "pull_failed"


class DigestMismatchError(PullError):
    code = "digest_mismatch"


class DiskFullError(RegistryError):
    code = "disk_full"


class ReadOnlyError(RegistryError):
    code = "read_only"


class LockedError(RegistryError):
    code = "locked"
