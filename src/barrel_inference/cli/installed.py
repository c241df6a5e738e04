"""The registry as the model commands use it: where the configuration says, in this process, without a server. Owns
nothing."""

from __future__ import annotations

import os
import time

from barrel_inference.registry import Registry
from barrel_inference.server.environment import configuration


def registry() -> Registry:
    return Registry.configured(configuration(os.environ, {}))


def age(modified_at: str, now: float | None = None) -> str:
    """``3 days ago``, from a manifest's time."""
    then = time.strptime(modified_at, "%Y-%m-%dT%H:%M:%SZ")
    seconds = (time.time() if now is None else now) - (time.mktime(then) - time.timezone)
    for unit, size in (("year", 31_536_000), ("month", 2_592_000), ("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
