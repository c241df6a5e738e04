"""Where models come from: one module a source, each with the same ``resolve(spec, context) -> Resolution``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import msgspec

from barrel_inference.config import RegistryOpts
from barrel_inference.errors import PullError
from barrel_inference.registry.manifest import File, Manifest
from barrel_inference.registry.names import Spec

if TYPE_CHECKING:
    from barrel_inference.registry.download.network import Network
    from barrel_inference.registry.download.server import Remote
    from barrel_inference.registry.install import Installation

Shape = TypeVar("Shape")
Role = Literal["model", "projector", "adapter"]
MAX_TEXT_BYTES = 4 << 20  # manifests, templates, licences, listings


class Artifact(NamedTuple):
    """One weights file: to be fetched (``remote``), on this machine (``local``; ``ours`` may be moved), or a sound blob
    that this pull holds already (``held``)."""

    role: Role
    remote: Remote | None = None
    local: Path | None = None
    ours: bool = False
    held: File | None = None


class Resolution(NamedTuple):
    """What a spec stands for. Several artifacts of the role ``model`` are the shards of one, in order."""

    artifacts: tuple[Artifact, ...]
    fields: Mapping[str, Any] = MappingProxyType({})  # what it brings: template, system, parameters, license, messages
    origin: Mapping[str, Any] = MappingProxyType({})


class Context(NamedTuple):
    """What a source may use. ``installed``: every model that is here, newest first."""

    network: Network
    options: RegistryOpts
    insecure: bool
    installation: Installation
    installed: Callable[[], Sequence[Manifest]]
    status: Callable[[dict[str, Any]], None]


Resolve = Callable[[Spec, Context], Awaitable[Resolution]]


def resolver(spec: Spec) -> Resolve:
    """The ``resolve`` of the source a spec names. Imported on use: HTTP takes 0.2 s that local work need not pay."""
    from barrel_inference.registry.sources import file, https, huggingface, ollama, pypi

    table: dict[str, Resolve] = {
        "ollama": ollama.resolve,
        "hf": huggingface.resolve,
        "https": https.resolve,
        "http": https.resolve,
        "file": file.resolve,
        "pypi": pypi.resolve,
    }
    return table[spec.scheme]


def understood(content: str | bytes, shape: type[Shape], what: str) -> Shape:
    """Somebody else's JSON; ``PullError`` when it is none, or has another shape."""
    try:
        return msgspec.json.decode(content, type=shape)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PullError(f"{what} is not understood: {error}") from None
