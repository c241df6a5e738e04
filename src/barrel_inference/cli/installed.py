"""The registry as the model commands use it: where the configuration says, in this process, without a server. Owns
nothing."""

from __future__ import annotations

import os
import time
from datetime import datetime

from barrel_inference.cli.report import counted
from barrel_inference.registry import Registry
from barrel_inference.server.environment import configuration


def registry() -> Registry:
    return Registry.configured(configuration(os.environ, {}))


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
