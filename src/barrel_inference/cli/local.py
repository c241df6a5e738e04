"""A runtime inside the command's own process, for commands that need no server: its configuration, the disk tier that
lets the next command find what this one has read, and what a model's name stands for. Owns the runtime it yields."""

from __future__ import annotations

import errno
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
from barrel_inference.cli.report import printable
from barrel_inference.config import RuntimeConfig, TierSpec
from barrel_inference.errors import ConfigError, InvalidModelError, ModelNotFoundError, TierUnusableError, os_reason
from barrel_inference.kvcache.quota import Quota
from barrel_inference.kvcache.tier import Tier
from barrel_inference.registry.files import Root, default_root
from barrel_inference.registry.names import is_weights_path, tagged
from barrel_inference.server import environment
from barrel_inference.server.models.catalog import Configured, Entry
from barrel_inference.server.models.parameters import merge
from barrel_inference.server.models.registered import from_manifest

STORE = "store"  # name of the disk tier
MAX_QUOTA_BYTES = 20 << 30
MIN_QUOTA_BYTES = 1 << 20  # under that it would keep no prompt worth keeping


def store(config: RuntimeConfig) -> TierSpec:
    """The disk tier that every command and the server share, beside the models. It may hold at most half of what is
    free without it, so that it fills no disk. Raises TierUnusableError where there is no room, or none may write."""
    try:
        return _opened(_root(config))
    except TierUnusableError as error:
        if _is_read_only(error.__cause__) and config.model_cache_dir:
            return _opened(default_root())  # models that many share, and only an administrator may change
        raise


def _root(config: RuntimeConfig) -> Path:
    return Root(Path(config.model_cache_dir)).path if config.model_cache_dir else default_root()


def _opened(root: Path) -> TierSpec:
    path = root / "kv_cache"
    try:
        existing = next(parent for parent in (path, *path.parents) if parent.is_dir())
        room = shutil.disk_usage(existing).free + _held_bytes(path)
    except OSError as error:
        raise TierUnusableError(f"{path} cannot be used: {os_reason(error)}", path=str(path)) from error
    if room // 2 < MIN_QUOTA_BYTES:
        raise TierUnusableError(f"{path} cannot be used: the disk is full", path=str(path))
    return Tier(TierSpec(name=STORE, kind="disk", path=str(path), quota_bytes=min(MAX_QUOTA_BYTES, room // 2))).spec


def _held_bytes(path: Path) -> int:
    return Quota(path, 0).used() if path.is_dir() else 0


def _is_read_only(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)


def configuration(**flags: Any) -> RuntimeConfig:
    """Defaults < file < environment < flags; with the shared disk tier unless the configuration names tiers. Without
    any, and a warning, where there can be none: nothing that is asked of a model needs it."""
    config = environment.configuration(os.environ, flags)
    if config.tiers:
        return config
    try:
        return msgspec.structs.replace(config, tiers=(store(config),))
    except TierUnusableError as error:
        sys.stderr.write(f"warning: nothing is kept on disk: {printable(error.message)}\n")
        return config


def first_tier(config: RuntimeConfig) -> str:
    """Its name. Raises TierUnusableError where there is none, which a warning has explained."""
    if not config.tiers:
        raise TierUnusableError("there is no tier to write to")
    return config.tiers[0].name


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
        raise ConfigError("there is no prompt: give one after the model's name, or pipe it in", option="prompt")
    return asked


def conversation(entry: Entry, question: str, system: str | None = None) -> list[dict[str, Any]]:
    """One turn, with what the model's own Modelfile puts before it."""
    system = system or entry.system
    head = [{"role": "system", "content": system}] if system else []
    return [*head, *entry.messages, {"role": "user", "content": question}]


def template(entry: Entry) -> dict[str, str]:
    """The model's own Modelfile's, as an option of a conversation."""
    return {"chat_template": entry.template} if entry.template else {}


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
        raise no_file(model)
    return None


def no_file(model: str) -> InvalidModelError:
    """What is wrong with a path that is no file's."""
    if Path(model).expanduser().is_dir():
        return InvalidModelError(f"{model} is a directory: name the GGUF file in it", path=model)
    return InvalidModelError(f"there is no file {model}", path=model)
