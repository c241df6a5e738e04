"""The registry and the configured models as the model commands use them: where the configuration says, in this process,
without a server. Owns nothing."""

from __future__ import annotations

import os
import time
from datetime import datetime

from barrel_inference.cli.report import counted
from barrel_inference.config import RuntimeConfig
from barrel_inference.registry import Manifest, Registry
from barrel_inference.registry.names import split_tag
from barrel_inference.server.environment import configuration
from barrel_inference.server.models.catalog import Configured, Entry, digest
from barrel_inference.server.models.registered import Registered

_SAME = set(Entry.__struct_fields__) & set(Manifest.__struct_fields__) - {"name", "digest", "context_size"}


def registry() -> Registry:
    return Registry.configured(configuration(os.environ, {}))


def configured() -> list[Manifest]:
    """The models that the configuration describes, as the server lists them, in the form of installed ones."""
    return [_manifest(entry) for entry in catalog(configuration(os.environ, {})).own()]


def catalog(config: RuntimeConfig) -> Configured:
    """All models, as a server of this configuration has them."""
    return Configured(config.server.models, Registered(Registry.configured(config)))


def _manifest(entry: Entry) -> Manifest:
    name, tag = split_tag(entry.name)
    same = {field: getattr(entry, field) for field in _SAME}
    return Manifest(
        **same,
        name=name,
        tag=tag or "",
        spec=entry.path or "",
        digest=f"sha256:{digest(entry)}",
        blob_path=entry.path or "",
        context_size=entry.context_size or 0,
        is_embedding=entry.embedding,
        loader=entry.load,
    )


def names_by_digest() -> dict[str, str]:
    """Hex SHA-256 of the weights -> a name that has them."""
    return {m.digest.removeprefix("sha256:"): str(m.model_name) for m in registry().list().manifests}


def relative(moment: str, now: float | None = None) -> str:
    """``3 days ago``, ``in 4 minutes`` or ``now``, from a time such as 2026-11-29T20:56:53Z."""
    left_s = datetime.fromisoformat(moment).timestamp() - (time.time() if now is None else now)
    for unit, size in (("year", 31_536_000), ("month", 2_592_000), ("day", 86_400), ("hour", 3600), ("minute", 60)):
        if abs(left_s) >= size:
            words = counted(int(abs(left_s) // size), unit)
            return f"in {words}" if left_s > 0 else f"{words} ago"
    return "now"
