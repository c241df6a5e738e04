"""What can be asked for by name: an Entry for each model, whoever knows it. Values, the seam, and the catalogue of the
configuration file.

The registry is behind the same protocol (``server.models.registered``).
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from barrel_inference.config import LoadArguments
from barrel_inference.errors import (
    BarrelError,
    DamagedModelError,
    InvalidModelError,
    InvalidNameError,
    ModelNotFoundError,
)
from barrel_inference.options import build
from barrel_inference.registry import gguf
from barrel_inference.registry.manifest import capabilities, describe, timestamp
from barrel_inference.registry.modelfile import check_parameters
from barrel_inference.registry.names import is_weights_path, tagged
from barrel_inference.types import Value

_FACTS = ("size_bytes", "architecture", "family", "parameter_size", "quantization", "embedding_length", "chat_template")
_ENTRY_OPTIONS = ("parameters", "system", "template", "messages", "license")


class Entry(Value, frozen=True):
    """A model as the registry or the configuration describes it; see spec of the manifest for the fields.

    ``load``: options of load_model; n_ctx only where an operator wrote it. ``parameters``: under Ollama's names.
    """

    name: str  # with its tag
    path: str | None = None
    digest: str = ""  # 64 hex
    size_bytes: int = 0
    modified_at: str = "1970-01-01T00:00:00Z"
    format: str = "gguf"
    architecture: str = ""
    family: str = ""
    parameter_size: str = ""
    quantization: str = ""
    context_size: int | None = None
    embedding_length: int | None = None
    chat_template: str | None = None
    template: str | None = None
    system: str | None = None
    license: tuple[str, ...] = ()
    messages: tuple[dict[str, Any], ...] = ()
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    load: dict[str, Any] = msgspec.field(default_factory=dict)
    parent: str = ""
    embedding: bool = False
    capabilities: tuple[str, ...] = ("completion",)


class Catalog(Protocol):
    """Raises RegistryErrors. Reads small files, so it may be asked from the event loop."""

    def resolve(self, name: str) -> Entry:
        """Raises ModelNotFoundError, InvalidNameError."""

    def list(self) -> Sequence[Entry]:
        """Newest first."""


def check(models: Mapping[str, Mapping[str, Any]]) -> None:
    """``server.models``: what each is made of. Raises ConfigError, and ModelfileError for a parameter."""
    for name, options in models.items():
        load = {key: value for key, value in options.items() if key not in _ENTRY_OPTIONS}
        build(LoadArguments(), load, prefix=f"server.models.{name}.")
        check_parameters(options.get("parameters", {}))


class Configured:
    """The models that the configuration names, in front of another catalogue. Raises what ``check`` raises.

    ``now``: what is said of when a model without a file was made."""

    def __init__(
        self,
        models: Mapping[str, Mapping[str, Any]],
        rest: Catalog | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        check(models)
        made = timestamp(now())
        self._entries = {tagged(name): _entry(tagged(name), made, options) for name, options in models.items()}
        self._rest = rest

    def resolve(self, name: str) -> Entry:
        if entry := self._entries.get(tagged(name)):
            return self._described(entry)
        if self._rest is None:
            raise ModelNotFoundError(f"model '{name}' not found", model=name)
        return self._rest.resolve(name)

    def list(self) -> Sequence[Entry]:
        rest = () if self._rest is None else self._rest.list()
        found = [*self.own(), *(entry for entry in rest if entry.name not in self._entries)]
        return sorted(found, key=lambda entry: datetime.fromisoformat(entry.modified_at), reverse=True)

    def own(self) -> Sequence[Entry]:
        """Those of the configuration alone."""
        return [self._described(entry) for entry in self._entries.values()]

    def missing(self) -> Sequence[str]:
        """What is wrong with the weights that the configuration names, a line each; it may yet become right."""
        located = [(entry, self._located(entry).path) for entry in self._entries.values()]
        return [
            f"model '{entry.name}': {entry.path} is neither a file nor an installed model"
            for entry, path in located
            if path is not None and not Path(path).is_file()
        ]

    def _described(self, entry: Entry) -> Entry:
        return _described(self._located(entry))

    def _located(self, entry: Entry) -> Entry:
        """With the path of its file where the configuration gives a name, as load_model finds it."""
        given = entry.path
        if given is None or self._rest is None or is_weights_path(given) or Path(given).is_file():
            return entry
        try:
            return msgspec.structs.replace(entry, path=self._rest.resolve(given).path)
        except (ModelNotFoundError, InvalidNameError):  # for the load to refuse
            return entry


def digest(entry: Entry) -> str:
    """64 hex always, since clients cut it: models that come from no blob have one of their name."""
    return entry.digest or hashlib.sha256(entry.name.encode()).hexdigest()


def damaged(entry: Entry, error: InvalidModelError) -> DamagedModelError:
    """What is wrong with the files of a model that somebody asked for by name, who has not brought them."""
    cure = f"pull it again, or see what is wrong: barrel-inference verify {entry.name}"
    return DamagedModelError(
        f"the files of model '{entry.name}' are missing or damaged ({error.message});"
        f" {cure if entry.digest else 'the configuration of the server names them'}",
        model=entry.name,
    )


def _entry(name: str, made: str, options: Mapping[str, Any]) -> Entry:
    own = {key: value for key, value in options.items() if key in _ENTRY_OPTIONS}
    load = {key: value for key, value in options.items() if key not in _ENTRY_OPTIONS and key != "model_path"}
    context = load.get("context_opts", {})
    if context.get("embeddings"):
        own |= {"embedding": True, "capabilities": ("embedding",)}
    weights = options.get("model_path")
    own["path"] = weights and os.path.expanduser(weights)  # noqa: PTH111 - Path's raises for a user who does not exist
    own |= {"context_size": context.get("n_ctx"), "modified_at": made}
    return Entry(name=name, load=load, **own)


def _described(entry: Entry) -> Entry:
    """With what its file says of itself; one that cannot be read is for the load to refuse."""
    try:
        status = Path(entry.path or "").stat()
        facts = _facts(entry.path or "", status.st_size, status.st_mtime_ns)
    except (OSError, ValueError, BarrelError):
        return entry
    is_embedding = entry.embedding or facts["is_embedding"]
    shown = capabilities(entry.template or facts["chat_template"] or "")
    return msgspec.structs.replace(
        entry,
        **{name: facts[name] for name in _FACTS},
        context_size=entry.context_size or facts["context_size"] or None,
        modified_at=timestamp(status.st_mtime),
        embedding=is_embedding,
        capabilities=("embedding",) if is_embedding else shown,
    )


@functools.lru_cache(maxsize=256)
def _facts(path: str, size: int, mtime_ns: int) -> dict[str, Any]:
    """``size`` and ``mtime_ns`` tell one content of the file from the next."""
    return describe(gguf.read(path), max_context=1)
