"""A runtime inside the command's own process, for commands that need no server: its configuration, the disk tier that
lets the next command find what this one has read, and where a model's file is. Owns the runtime it yields."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from barrel_inference.aio import AsyncModel, AsyncRuntime
from barrel_inference.config import RuntimeConfig, TierSpec
from barrel_inference.errors import ModelFileError
from barrel_inference.options import config_file, layered

STORE = "store"  # name of the disk tier
MAX_QUOTA_BYTES = 20 << 30


def store() -> TierSpec:
    """The disk tier that every command and the server share; at most half of what is free, so that it fills no disk."""
    import platformdirs

    path = platformdirs.user_cache_path("barrel_inference_server") / "models" / "kv_cache"
    existing = next(parent for parent in (path, *path.parents) if parent.is_dir())
    quota = min(MAX_QUOTA_BYTES, shutil.disk_usage(existing).free // 2)
    return TierSpec(name=STORE, kind="disk", path=str(path), quota_bytes=quota)


def configuration(**flags: Any) -> RuntimeConfig:
    """Defaults < file < environment < flags; with the shared disk tier unless the configuration names tiers."""
    config = layered(RuntimeConfig(), file=config_file(), environ=os.environ, flags=flags)
    return config if config.tiers else layered(config, file=None, environ={}, flags={"tiers": (store(),)})


@asynccontextmanager
async def loaded(model: str, config: RuntimeConfig, *, cache: bool = True, **options: Any) -> AsyncIterator[AsyncModel]:
    """The model in a runtime of its own, saving to the first tier of the configuration."""
    tier = config.tiers[0]
    async with AsyncRuntime(config) as runtime:
        options |= {"tier": tier.kind, "tier_srv": tier.name} if cache else {"cache": False}
        yield await runtime.load_model(model_path=locate(model), **options)


def locate(model: str) -> str:
    """The GGUF file that a path or a registry name means. Raises ModelFileError, ModelNotFoundError."""
    path = Path(model).expanduser()
    if path.is_file():
        return str(path)
    if model.endswith(".gguf") or model.startswith(("/", "./", "../", "~")):
        raise ModelFileError(f"there is no file {model}", path=model)
    from barrel_inference.registry import locate as locate_name

    return locate_name(model)
