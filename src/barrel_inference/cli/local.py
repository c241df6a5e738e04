"""A runtime inside the command's own process, for commands that need no server: its configuration, the disk tier that
lets the next command find what this one has read, and what a model's name stands for. Owns the runtime it yields."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from barrel_inference.aio import AsyncModel, AsyncRuntime
from barrel_inference.cli import installed
from barrel_inference.cli.progress import follow
from barrel_inference.config import RuntimeConfig, TierSpec
from barrel_inference.errors import ConfigError, InvalidModelError, ModelNotFoundError
from barrel_inference.registry.files import default_root
from barrel_inference.registry.names import is_weights_path
from barrel_inference.server import environment
from barrel_inference.server.models.catalog import Configured, Entry, tagged
from barrel_inference.server.models.parameters import merge
from barrel_inference.server.models.registered import from_manifest

STORE = "store"  # name of the disk tier
MAX_QUOTA_BYTES = 20 << 30


def store() -> TierSpec:
    """The disk tier that every command and the server share; at most half of what is free, so that it fills no disk."""
    path = default_root() / "kv_cache"
    existing = next(parent for parent in (path, *path.parents) if parent.is_dir())
    quota = min(MAX_QUOTA_BYTES, shutil.disk_usage(existing).free // 2)
    return TierSpec(name=STORE, kind="disk", path=str(path), quota_bytes=quota)


def configuration(**flags: Any) -> RuntimeConfig:
    """Defaults < file < environment < flags; with the shared disk tier unless the configuration names tiers."""
    config = environment.configuration(os.environ, flags)
    return config if config.tiers else msgspec.structs.replace(config, tiers=(store(),))


@asynccontextmanager
async def loaded(entry: Entry, config: RuntimeConfig, **options: Any) -> AsyncIterator[AsyncModel]:
    """The model in a runtime of its own."""
    async with AsyncRuntime(config) as runtime:
        yield await load(runtime, entry, **options)


async def load(runtime: AsyncRuntime, entry: Entry, *, cache: bool = True, **options: Any) -> AsyncModel:
    """With the entry's own options under these; saving to the first tier of the configuration, if it names any."""
    tier = next(iter(runtime.config.tiers), None)
    saving = {"tier": tier.kind, "tier_srv": tier.name} if tier and cache else {"cache": cache}
    own = merge(entry.load, options)
    if cache and own.keys() & {"tier", "tier_srv", "cache"}:  # the configuration says where this one saves
        saving = {}
    return await runtime.load_model(model_path=entry.path, **own | saving)


async def find(model: str) -> Entry:
    """What a GGUF path or a name stands for, as a server has it: of the configuration, else installed, else pulled,
    with its progress on standard error. Raises InvalidModelError and RegistryErrors."""
    if (entry := _file(model) or _configured(model)) is not None:
        return entry
    registry = installed.registry()
    try:
        return from_manifest(registry.resolve(model))
    except ModelNotFoundError:
        await follow(registry.pull(model))
        return from_manifest(registry.resolve(model))


def question(prompt: str | None) -> str:
    """Piped input first: a document stays the same while the questions about it change. Raises ConfigError."""
    piped = "" if sys.stdin.isatty() else sys.stdin.read().strip("\n")
    asked = "\n\n".join(part for part in (piped, prompt) if part)
    if not asked:
        raise ConfigError("there is no prompt: write it behind the model's name, or pipe it in", option="prompt")
    return asked


def conversation(entry: Entry, question: str, system: str | None = None) -> list[dict[str, Any]]:
    """One turn, with what the model's own Modelfile puts before it."""
    system = system or entry.system
    head = [{"role": "system", "content": system}] if system else []
    return [*head, *entry.messages, {"role": "user", "content": question}]


def _configured(model: str) -> Entry | None:
    """None when the configuration has no model of this name."""
    models = environment.configuration(os.environ, {}).server.models
    named = {name: options for name, options in models.items() if tagged(name) == tagged(model)}
    return Configured(named).resolve(model) if named else None


def _file(model: str) -> Entry | None:
    """None when it is a name."""
    path = Path(model).expanduser()
    if path.is_file():
        return Entry(name=path.stem, path=str(path))
    if is_weights_path(model):
        raise InvalidModelError(f"there is no file {model}", path=model)
    return None
