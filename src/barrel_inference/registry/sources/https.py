"""A GGUF behind a plain URL. Its digest is not known beforehand; ETag and date tell versions apart."""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import quote, unquote, urlsplit

from barrel_inference.registry.download.server import Remote
from barrel_inference.registry.gguf import shard_paths
from barrel_inference.registry.names import Spec
from barrel_inference.registry.sources import Artifact, Context, Resolution


async def resolve(spec: Spec, context: Context) -> Resolution:
    url = urlsplit(spec.location)
    path = PurePosixPath(unquote(url.path))
    names = [shard.name for shard in shard_paths(path)]
    if len(names) == 1:
        return Resolution((Artifact("model", Remote(spec.location, path.name or "model.gguf")),))
    urls = [url._replace(path=quote(str(path.with_name(name)))).geturl() for name in names]
    return Resolution(tuple(Artifact("model", Remote(u, name)) for u, name in zip(urls, names, strict=True)))
