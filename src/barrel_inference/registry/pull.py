"""``pull``: from a spec to an installed model. Pure sequence; what lasts belongs to Installation and the stores."""

from __future__ import annotations

import functools
import logging
import time
from typing import Any

import msgspec

from barrel_inference.errors import InvalidModelError, ModelfileError
from barrel_inference.registry import gguf
from barrel_inference.registry.download.network import Network, NetworkPolicy, host_and_port
from barrel_inference.registry.install import Brought, Installation, OnStatus
from barrel_inference.registry.manifest import File, Manifest, describe, timestamp
from barrel_inference.registry.modelfile import check_parameters, loader_options
from barrel_inference.registry.names import ModelName, Spec
from barrel_inference.registry.sources import Artifact, Context, Resolution, resolver
from barrel_inference.registry.store import Ground

log = logging.getLogger(__name__)


async def pull(ground: Ground, spec: Spec, name: ModelName, insecure: bool, status: OnStatus) -> Manifest:
    """Install what ``spec`` means as ``name``; reports to ``status``. Raises RegistryError, InvalidModelError."""
    status({"status": "pulling manifest"})
    async with Installation(ground, status) as installation, Network(policy(ground, insecure)) as network:
        context = Context(network, ground.options, insecure, installation, ground.store.installed, status)
        resolution = await resolver(spec)(spec, context)
        previous = functools.partial(ground.store.pulled_from, spec.canonical)
        brought = [(a, await installation.bring(a, network, previous)) for a in resolution.artifacts]
        status({"status": "verifying sha256 digest"})
        manifest = assemble(ground, name, spec.canonical, brought, resolution)
        status({"status": "writing manifest"})
        manifest = await installation.publish(manifest, spec)
    status({"status": "success"})
    return manifest


def policy(ground: Ground, insecure: bool) -> NetworkPolicy:
    """Endpoints that the operator configured may be private; nothing else unless allowed."""
    options = ground.options
    configured = [options.hf_endpoint, *([options.ollama_endpoint] if options.ollama_endpoint else [])]
    hosts = frozenset(host_and_port(url) for url in configured)
    return NetworkPolicy(insecure, options.allow_private, hosts, options.stall_s)


def assemble(
    ground: Ground, name: ModelName, spec: str, brought: list[tuple[Artifact, Brought]], resolution: Resolution
) -> Manifest:
    """The manifest of files that are all here."""
    models = [item for artifact, item in brought if artifact.role == "model"]
    main, shards = lay_out(ground, models)
    fields = dict(resolution.fields)
    parameters = kept_parameters(fields.pop("parameters", {}))
    manifest = describe_model(ground, name, spec, models, main, shards)
    version = models[0].version
    origin = {**resolution.origin, **({"validator": version.if_range} if version and version.if_range else {})}
    return msgspec.structs.replace(
        manifest,
        projector=next((item.as_file() for artifact, item in brought if artifact.role == "projector"), None),
        adapters=tuple(item.as_file() for artifact, item in brought if artifact.role == "adapter"),
        parameters=parameters,
        loader={**manifest.loader, **loader_options(parameters, ground.options.max_context_size)},
        origin=origin,
        **fields,
    )


def lay_out(ground: Ground, models: list[Brought]) -> tuple[str, tuple[File, ...]]:
    """The path to load, and the list of shards if there are several."""
    if len(models) == 1:
        return str(models[0].path), ()
    path = ground.blobs.layout_shards([(item.digest, item.path) for item in models])
    return str(path), tuple(item.as_file() for item in models)


def describe_model(
    ground: Ground, name: ModelName, spec: str, models: list[Brought], main: str, shards: tuple[File, ...]
) -> Manifest:
    info = gguf.read_files(tuple(item.path for item in models))
    if info.kind not in ("model", ""):
        raise InvalidModelError(f"this GGUF holds an {info.kind}, not a model")
    facts = describe(info, ground.options.max_context_size)
    return Manifest(
        name=name.name,
        tag=name.tag,
        spec=spec,
        digest=models[0].digest,
        blob_path=main,
        shards=shards,
        modified_at=timestamp(time.time()),
        **facts,
    )


def kept_parameters(values: dict[str, Any]) -> dict[str, Any]:
    """A registry's own parameters, typed; what this version does not know is left out rather than fatal."""
    kept: dict[str, Any] = {}
    left_out = []
    for name, value in values.items():
        try:
            kept |= check_parameters({name: value})
        except ModelfileError as error:
            left_out.append(error.message)
    if left_out:
        log.warning("%d parameters of the registry are left out, the first because %s", len(left_out), left_out[0])
    return kept
