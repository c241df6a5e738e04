"""The registry as a catalogue: manifests to entries. Owns nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from barrel_inference.registry.manifest import Manifest
from barrel_inference.registry.store import Listing
from barrel_inference.server.models.catalog import Entry

_MODEL_OPTS = ("n_gpu_layers", "weight_residency", "split_mode", "main_gpu", "use_mmap", "use_mlock")
_CONTEXT_OPTS = ("n_batch", "n_seq_max", "n_threads", "flash_attn", "type_k", "type_v")
# Every manifest's loader has these: they are somebody's wish only where the parameter is set too.
_DERIVED = {"n_gpu_layers": "num_gpu", "n_batch": "num_batch"}
_TOP = ("quant_type", "quant_bits")
_SAME = set(Entry.__struct_fields__) & set(Manifest.__struct_fields__) - {"name", "digest", "context_size"}


class Manifests(Protocol):
    """The part of the registry that is needed here."""

    def resolve(self, text: str) -> Manifest: ...

    def list(self) -> Listing: ...


class Registered:
    def __init__(self, registry: Manifests) -> None:
        self._registry = registry

    def resolve(self, name: str) -> Entry:
        return from_manifest(self._registry.resolve(name))

    def list(self) -> Sequence[Entry]:
        return [from_manifest(manifest) for manifest in self._registry.list().manifests]


def from_manifest(manifest: Manifest) -> Entry:
    same = {name: getattr(manifest, name) for name in _SAME}
    return Entry(
        **same,
        name=str(manifest.model_name),
        path=manifest.blob_path,
        digest=manifest.digest.removeprefix("sha256:"),
        context_size=manifest.context_size or None,
        embedding=manifest.is_embedding,
        capabilities=manifest.capabilities,
        load=_load(manifest),
    )


def _load(manifest: Manifest) -> dict[str, Any]:
    """The options of load_model that a manifest's loader table and its adapters stand for. Not its n_ctx: that is what
    the limits of the day it was pulled allowed, and a PARAMETER num_ctx stands in ``parameters``. Nor what a pull
    writes for every file: the configuration counts more than that, and less than what a person has set."""
    derived = {name for name, parameter in _DERIVED.items() if parameter not in manifest.parameters}
    loader = {name: value for name, value in manifest.loader.items() if name not in derived}
    load: dict[str, Any] = {name: loader[name] for name in _TOP if loader.get(name)}
    groups = {"model_opts": _MODEL_OPTS, "context_opts": _CONTEXT_OPTS}
    load |= {group: {name: loader[name] for name in names if name in loader} for group, names in groups.items()}
    if manifest.adapters:
        load["lora"] = [[file.blob_path, file.scale] for file in manifest.adapters]
    load["fingerprint_mode"] = "safe"
    return msgspec.to_builtins(load)  # type: ignore[no-any-return]
