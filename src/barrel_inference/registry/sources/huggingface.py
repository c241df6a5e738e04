"""The Hugging Face Hub, by its HTTP API. The token goes to the endpoint's own host and to no redirect's."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

import msgspec

from barrel_inference.config import RegistryOpts
from barrel_inference.errors import PullError
from barrel_inference.registry.download.network import Credential, Network, NetworkPolicy, host_and_port, origin_of
from barrel_inference.registry.download.server import Remote
from barrel_inference.registry.gguf import is_first_of_model, shard_paths
from barrel_inference.registry.names import Spec
from barrel_inference.registry.sources import MAX_TEXT_BYTES, Artifact, Context, Resolution, understood

PREFERRED = ("Q4_K_M", "Q5_K_M", "Q4_0", "Q8_0")
_MAX_LISTING = 4 * MAX_TEXT_BYTES


class _Lfs(msgspec.Struct):
    sha256: str | None = None
    size: int | None = None


class _Sibling(msgspec.Struct):
    rfilename: str
    size: int | None = None
    lfs: _Lfs | None = None


class _Found(msgspec.Struct):
    id: str
    downloads: int = 0
    likes: int = 0


class _Repository(msgspec.Struct):
    sha: str
    siblings: list[_Sibling] = []


async def resolve(spec: Spec, context: Context) -> Resolution:
    repository = await _listing(spec, context)
    files = {item.rfilename: item for item in repository.siblings}
    chosen = spec.file or choose(list(files), spec.quant)
    if chosen is None:
        raise PullError(_no_match(spec, list(files)))
    names = [str(path) for path in shard_paths(PurePosixPath(chosen))]
    if missing := [name for name in names if name not in files]:
        raise PullError(f"{spec.location} has no file {missing[0]!r}", status=404)
    remotes = [_remote(spec, context, repository.sha, files[name]) for name in names]
    origin = {"commit": repository.sha, "file": chosen}
    return Resolution(tuple(Artifact("model", remote) for remote in remotes), origin=origin)


def choose(names: list[str], quant: str | None) -> str | None:
    """The best GGUF of a repository: the quantization asked for, else the preferred one, else the first by name."""
    models = sorted(name for name in names if is_first_of_model(name))
    for wanted in (quant,) if quant and quant.lower() != "latest" else PREFERRED:
        for name in models:
            if _has_quant(name, wanted):
                return name
    return None if quant and quant.lower() != "latest" else next(iter(models), None)


async def search_hub(query: str, limit: int, options: RegistryOpts) -> list[dict[str, Any]]:
    """GGUF repositories of the Hub that match, most downloaded first."""
    url = f"{options.hf_endpoint}/api/models?search={quote(query)}&filter=gguf&sort=downloads&limit={limit}"
    async with Network(NetworkPolicy(private_hosts=frozenset({host_and_port(options.hf_endpoint)}))) as network:
        response, body = await network.read(url, MAX_TEXT_BYTES, credential=_credential(options))
    if response.status != 200:
        raise PullError(f"the search answered {response.status}", status=response.status)
    found = understood(body, list[_Found], "the search's answer")
    return [{"name": f"hf://{item.id}", "downloads": item.downloads, "likes": item.likes} for item in found]


def _has_quant(name: str, quant: str) -> bool:
    return bool(re.search(rf"(?<![A-Za-z0-9]){re.escape(quant)}(?![A-Za-z0-9_])", name, re.IGNORECASE))


def _no_match(spec: Spec, names: list[str]) -> str:
    models = sorted(name for name in names if is_first_of_model(name))
    if not models:
        return f"{spec.location} holds no GGUF file; look for a repository whose name ends in -GGUF"
    return f"{spec.location} has no {spec.quant} file; there are: {', '.join(models[:12])}"


async def _listing(spec: Spec, context: Context) -> _Repository:
    revision = quote(spec.version or "main", safe="")
    url = f"{context.options.hf_endpoint}/api/models/{spec.location}/revision/{revision}?blobs=true"
    response, body = await context.network.read(url, _MAX_LISTING, credential=_credential(context.options))
    if response.status in (401, 403):
        raise PullError(
            f"{spec.location} is gated or private; accept its terms on the Hub and set HF_TOKEN", status=401
        )
    if response.status == 404:
        raise PullError(f"{spec.location}@{spec.version or 'main'} does not exist on the Hub", status=404)
    if response.status != 200:
        raise PullError(f"the Hub answered {response.status} for {spec.location}", status=response.status)
    return understood(body, _Repository, f"the Hub's listing of {spec.location}")


def _remote(spec: Spec, context: Context, commit: str, file: _Sibling) -> Remote:
    url = f"{context.options.hf_endpoint}/{spec.location}/resolve/{quote(commit)}/{quote(file.rfilename)}"
    lfs = file.lfs or _Lfs()
    digest = f"sha256:{lfs.sha256}" if lfs.sha256 and re.fullmatch("[0-9a-f]{64}", lfs.sha256) else None
    return Remote(url, file.rfilename.rpartition("/")[2], digest, lfs.size or file.size, _credential(context.options))


def _credential(options: RegistryOpts) -> Credential | None:
    return Credential(origin_of(options.hf_endpoint), f"Bearer {options.hf_token}") if options.hf_token else None
