"""Seeing and steering the KV store of a runtime. Owns nothing: tiers and models belong to the runtime."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from barrel_inference import tally
from barrel_inference.aio.params import Prompt, StrPath, check_path, check_prompt, check_seconds, check_text
from barrel_inference.aio.tiers import AUTOMATIC, Tiers
from barrel_inference.errors import TierUnknownError
from barrel_inference.kvcache.tier import Tier
from barrel_inference.options import nearest
from barrel_inference.threads import Threads
from barrel_inference.types import CacheLookup, CacheStats

if TYPE_CHECKING:
    from barrel_inference.aio.model import AsyncModel
    from barrel_inference.kvcache.admin.archive import Moved
    from barrel_inference.kvcache.admin.content import NamespaceStats, Removed, Scrubbed


class AsyncCache:
    """``runtime.cache``. What concerns a prompt is asked of a loaded model, since only it knows its tokens."""

    def __init__(
        self,
        tiers: Tiers,
        model: Callable[[str], AsyncModel],
        counters: Callable[[], dict[str, dict[str, float]]],
        model_of: Callable[[str], str],
    ) -> None:
        """``counters``: of each model, flat (see tally); ``model_of`` a namespace: its name, or nothing."""
        self._tiers = tiers
        self._model = model
        self._counters = counters
        self._model_of = model_of
        self._threads = Threads(2, "cache")  # for what reads all that is stored

    def close(self) -> None:
        """The end of the runtime: its threads end."""
        self._threads.close()

    async def stats(self) -> CacheStats:
        """Tiers as they are now; counters since the runtime's start, summed, by model, and by tier and model."""
        by_model: dict[str, dict[str, float]] = {}
        by_tier = self._evicted()
        total: dict[str, float] = dict(self._tiers.janitor.counters)
        for model, counters in self._counters().items():
            by_model[model], parts = tally.split(counters)
            for tier, part in parts.items():
                of_model = by_tier.setdefault(tier, {}).setdefault(model, {})
                of_model.update(part)
            for name, value in by_model[model].items():
                total[name] = total.get(name, 0.0) + value
        tiers = await asyncio.to_thread(self._tiers.infos)
        return CacheStats(tiers=tuple(tiers), counters=total, by_model=by_model, by_tier=by_tier)

    def _evicted(self) -> dict[str, dict[str, dict[str, float]]]:
        """By tier, model and name."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for (tier, namespace, name), n in dict(self._tiers.janitor.evicted).items():
            counters = found.setdefault(tier, {}).setdefault(self._model_of(namespace), {})
            counters[name] = counters.get(name, 0.0) + n
        return found

    async def namespaces(self) -> list[NamespaceStats]:
        """What each model holds in each tier; loaded or not."""
        from barrel_inference.kvcache.admin import content  # not for those who only import the package

        return await self._threads.run(content.stats, self._tiers.all())

    async def lookup(self, model_id: str, prompt: Prompt, *, salt: str = "") -> CacheLookup:
        """How much of a prompt would be restored."""
        return await self._model(model_id).lookup(prompt, salt=salt)

    async def pin(self, model_id: str, prompt: Prompt, *, salt: str = "") -> int:
        """Keep what is stored of a prompt longer than anything else; tokens pinned. CacheError when there is none."""
        return await self._model(model_id).pin(prompt, salt=salt)

    async def unpin(self, model_id: str, prompt: Prompt, *, salt: str = "") -> bool:
        """Whether it was pinned."""
        return await self._model(model_id).unpin(prompt, salt=salt)

    async def clear(
        self, *, namespace: str | None = None, older_than_s: float | None = None, tier: str | None = None
    ) -> Removed:
        """Remove everything, or only one namespace (8 hex digits suffice), what was not used for so long, or what one
        tier holds. Running requests see misses."""
        from barrel_inference.kvcache.admin import content

        older_than = None if older_than_s is None else time.time() - check_seconds("older_than_s", older_than_s)
        namespace = None if namespace is None else check_text(namespace)
        clear = functools.partial(content.clear, namespace=namespace, older_than=older_than)
        return await self._threads.run(clear, self._chosen(tier))

    async def verify(self, *, tier: str | None = None) -> Scrubbed:
        """Read and prove every object; damaged ones go to quarantine."""
        from barrel_inference.kvcache.admin import content

        return await self._threads.run(content.verify, self._chosen(tier))

    async def export(self, model_id: str, prompt: Prompt, file: StrPath, *, salt: str = "") -> Moved:
        """Write all that is stored of a prompt to one file. Raises CacheError."""
        from barrel_inference.kvcache.admin.archive import Moved  # tarfile is slow to import

        call = self._model(model_id).call
        path = str(Path.cwd() / check_path(file))
        moved = await call("cache_export", prompt=check_prompt(prompt), salt=check_text(salt), path=path)
        return msgspec.convert(moved, Moved)

    async def import_(self, file: StrPath, *, tier: str | None = None) -> Moved:
        """Put an exported file's objects into a tier (the automatic one). Raises CacheError."""
        from barrel_inference.kvcache.admin import archive

        return await self._threads.run(archive.import_file, check_path(file), self._target(tier))

    def quota_bytes(self, tier: str | None = None) -> int:
        """The most that a tier (the automatic one) may hold, and so that can be imported into it."""
        return self._target(tier).quota.limit_bytes

    def _target(self, tier: str | None) -> Tier:
        return self._tiers.automatic() if tier in (None, AUTOMATIC) else self._chosen(tier)[0]

    def _chosen(self, name: str | None) -> list[Tier]:
        tiers = self._tiers.all()
        chosen = [tier for tier in tiers if name in (None, tier.name)]
        if name is not None and not chosen:
            names = [tier.name for tier in tiers]
            raise TierUnknownError(f"tier {name!r} is not started{nearest(name, names)}", tier=name, option="tier")
        return chosen
