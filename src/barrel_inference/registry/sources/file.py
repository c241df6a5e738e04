"""Models that are files of this machine: registered where they are, hashed, never copied."""

from __future__ import annotations

import stat
from pathlib import Path

from barrel_inference.errors import InvalidModelError, os_reason
from barrel_inference.registry.files import absolute
from barrel_inference.registry.gguf import is_first_of_model, shard_paths
from barrel_inference.registry.names import Spec
from barrel_inference.registry.sources import Artifact, Context, Resolution

UNCONVERTED = (".safetensors", ".bin", ".pth")  # weights of other programs


async def resolve(spec: Spec, context: Context) -> Resolution:
    return Resolution(tuple(Artifact("model", local=path) for path in model_files(Path(spec.location))))


def model_files(path: Path) -> tuple[Path, ...]:
    """The file, or all files of a split model; each must be a regular file that can be read. A directory stands for
    the one model in it."""
    path = absolute(path)
    paths = shard_paths(_only_model(path) if path.is_dir() else path)
    for item in paths:
        try:
            mode = item.stat().st_mode
        except (OSError, ValueError) as error:
            reason = os_reason(error) if isinstance(error, OSError) else error
            raise InvalidModelError(f"{item.name}: {reason}", path=str(item)) from None
        if not stat.S_ISREG(mode):
            raise InvalidModelError(f"{item.name}: not a regular file", path=str(item))
    return paths


def holds_weights(directory: Path) -> bool:
    return directory.is_dir() and any(_entries(directory, ".gguf", *UNCONVERTED))


def _only_model(directory: Path) -> Path:
    models = [path for path in _entries(directory, ".gguf") if is_first_of_model(path.name)]
    if len(models) == 1:
        return models[0]
    if models:
        raise InvalidModelError(
            f"{directory}: holds several models, name one: {', '.join(path.name for path in models[:9])}"
        )
    if any(_entries(directory, *UNCONVERTED)):
        raise InvalidModelError(f"{directory}: not GGUF; convert it first, with llama.cpp's convert_hf_to_gguf.py")
    raise InvalidModelError(f"{directory}: a directory without a GGUF file")


def _entries(directory: Path, *suffixes: str) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.name.lower().endswith(suffixes))
    except OSError as error:
        raise InvalidModelError(f"{directory}: {os_reason(error)}") from None
