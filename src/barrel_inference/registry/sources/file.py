"""Models that are files of this machine: registered where they are, hashed, never copied."""

from __future__ import annotations

import stat
from pathlib import Path

from barrel_inference.errors import ModelFileError
from barrel_inference.registry.files import absolute
from barrel_inference.registry.gguf import shard_paths
from barrel_inference.registry.names import Spec
from barrel_inference.registry.sources import Artifact, Context, Resolution


async def resolve(spec: Spec, context: Context) -> Resolution:
    return Resolution(tuple(Artifact("model", local=path) for path in model_files(Path(spec.location))))


def model_files(path: Path) -> tuple[Path, ...]:
    """The file, or all files of a split model; each must be a regular file that can be read."""
    paths = shard_paths(absolute(path))
    for item in paths:
        try:
            mode = item.stat().st_mode
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ModelFileError(f"{item.name}: {(reason or 'not readable').lower()}") from None
        if not stat.S_ISREG(mode):
            raise ModelFileError(f"{item.name}: not a regular file")
    return paths
