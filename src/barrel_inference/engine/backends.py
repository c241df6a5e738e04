"""Backends by name: ours, and third parties' through the entry point group ``barrel_inference.backends``."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from barrel_inference.config import BACKEND_GROUP, BACKENDS, LoadOptions
from barrel_inference.engine.backend import Backend
from barrel_inference.errors import ConfigError, InvalidModelError
from barrel_inference.fingerprint import check_identity

OnProgress = Callable[[float], None]


def open_backend(options: LoadOptions, on_progress: OnProgress) -> Backend:
    """Load the model. Raises ConfigError for an unknown name, InvalidModelError for files that are not those any more
    whose fingerprint names the KV state, and what the backend raises."""
    check_identity(options.files)
    backend = _open(options, on_progress)
    try:
        check_identity(options.files)
    except InvalidModelError:
        backend.close()
        raise
    return backend


def _open(options: LoadOptions, on_progress: OnProgress) -> Backend:
    match options.backend:
        case "llama":
            from barrel_inference.engine.llama import LlamaBackend

            return LlamaBackend(options, on_progress)
        case "stub":
            from barrel_inference.engine.stub import StubBackend

            return StubBackend(options, on_progress)
        case name:
            return _third_party(name, options, on_progress)


def _third_party(name: str, options: LoadOptions, on_progress: OnProgress) -> Backend:
    found = entry_points(group=BACKEND_GROUP)
    for entry in found:
        if entry.name == name:
            backend: Backend = entry.load()(options, on_progress)
            return backend
    known = ", ".join([*BACKENDS, *(entry.name for entry in found)])
    raise ConfigError(f"unknown backend {name!r}; known: {known}", option="backend", value=name, allowed=known)
