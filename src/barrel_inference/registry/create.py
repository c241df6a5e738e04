"""``create``: a model of one's own from a Modelfile or Ollama's fields. A sequence over Installation; owns nothing."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from barrel_inference.errors import (
    InvalidNameError,
    ModelfileError,
    ModelNotFoundError,
    PullError,
    TemplateError,
    UnsupportedError,
)
from barrel_inference.registry import gguf, gotemplate
from barrel_inference.registry.download.network import Network
from barrel_inference.registry.files import absolute
from barrel_inference.registry.install import Brought, Installation, OnStatus
from barrel_inference.registry.manifest import Manifest, timestamp
from barrel_inference.registry.modelfile import (
    ROLES,
    Modelfile,
    cap_note,
    check_parameters,
    line_of,
    loader_options,
    parse,
)
from barrel_inference.registry.names import ModelName, is_path, is_weights_path, parse_digest, parse_spec
from barrel_inference.registry.pull import describe_model, lay_out, policy
from barrel_inference.registry.sources import Artifact
from barrel_inference.registry.sources.file import holds_weights, model_files
from barrel_inference.registry.store import Ground

PullBase = Callable[[str], Awaitable[None]]


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A FROM that somebody else knows: its weights, as a path or an installed name, and what it says below all that the
    Modelfile says."""

    weights: str
    says: Modelfile


def _nobody(source: str) -> Known | None:
    return None


class CreateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Both request forms: a Modelfile's text, or Ollama's fields, which win where both are given.

    ``directory``: where relative paths of FROM and ADAPTER start. None: paths are refused, since they would be read on
    this machine for somebody on another one.
    """

    modelfile: str | bytes | None = None
    from_: str | None = None
    files: dict[str, str] = {}  # file name -> digest of an uploaded blob
    adapters: dict[str, str] = {}
    template: str | None = None
    system: str | None = None
    license: str | list[str] | None = None
    parameters: dict[str, Any] = {}
    messages: list[dict[str, Any]] | None = None
    quantize: str | None = None
    directory: str | None = None
    insecure: bool = False
    known: Callable[[str], Known | None] = _nobody  # asked about each FROM before anybody else is


async def create(
    ground: Ground, name: ModelName, request: CreateRequest, pull_base: PullBase, status: OnStatus
) -> Manifest:
    """Install ``name``; ``pull_base`` fetches a FROM that is not here. Raises before anything is written."""
    modelfile = _over_known(merge(request), request.known)
    for warning in modelfile.warnings:
        status({"status": f"warning: {warning}"})
    async with Installation(ground, status) as installation, Network(policy(ground, request.insecure)) as network:
        builder = _Builder(ground, installation, network, request, pull_base)
        manifest = await builder.build(name, modelfile)
        if note := cap_note(modelfile.parameters, ground.options.max_context_size):
            status({"status": note})
        status({"status": "writing manifest"})
        manifest = await installation.publish(manifest, None)
    status({"status": "success"})
    return manifest


def merge(request: CreateRequest) -> Modelfile:
    """Both forms as one Modelfile value, checked."""
    if request.quantize:
        raise UnsupportedError("quantizing is not supported; pull a quantized model, or use llama-quantize")
    sources = ([request.from_] if request.from_ else []) + [f"@{digest}" for digest in request.files.values()]
    if request.modelfile is not None:
        base = parse(request.modelfile)
    elif sources:
        base = Modelfile(sources=())
    else:
        raise ModelfileError("neither 'from' or 'files' was specified")
    licenses = [request.license] if isinstance(request.license, str) else request.license
    merged = msgspec.structs.replace(
        base,
        sources=tuple(sources) or base.sources,
        adapters=tuple(f"@{digest}" for digest in request.adapters.values()) or base.adapters,
        template=base.template if request.template is None else request.template,
        system=base.system if request.system is None else request.system,
        license=base.license if licenses is None else tuple(licenses),
        parameters={**base.parameters, **check_parameters(request.parameters)},
        messages=base.messages if request.messages is None else _messages(request.messages),
    )
    _check_template(request, merged)
    return merged


def _over_known(modelfile: Modelfile, known: Callable[[str], Known | None]) -> Modelfile:
    for says in [found.says for source in modelfile.sources if (found := known(source)) is not None]:
        modelfile = msgspec.structs.replace(
            modelfile,
            parameters={**says.parameters, **modelfile.parameters},
            system=says.system if modelfile.system is None else modelfile.system,
            template=says.template if modelfile.template is None else modelfile.template,
            messages=modelfile.messages or says.messages,
            license=modelfile.license or says.license,
        )
    return modelfile


def _check_template(request: CreateRequest, merged: Modelfile) -> None:
    if merged.template is None:
        return
    try:
        gotemplate.check(merged.template)
    except TemplateError as error:
        if request.template is not None or request.modelfile is None:
            raise
        line = line_of(request.modelfile, "template")
        raise TemplateError(f"(line {line}): {error.message}", line=line) from None


def _messages(messages: list[dict[str, Any]]) -> tuple[dict[str, str], ...]:
    for message in messages:
        if message.get("role") not in ROLES or not isinstance(message.get("content"), str):
            raise ModelfileError('a message needs a role of "system", "user" or "assistant", and a text')
    return tuple({"role": m["role"], "content": m["content"]} for m in messages)


def _part_number(metadata: Mapping[str, Any]) -> int:
    number = metadata.get("split.no")
    return number if isinstance(number, int) else 0


class _Base(NamedTuple):
    """What one FROM stands for: an installed model, or weights alone."""

    manifest: Manifest | None = None
    files: tuple[Brought, ...] = ()


class _Builder:
    def __init__(
        self, ground: Ground, installation: Installation, network: Network, request: CreateRequest, pull_base: PullBase
    ) -> None:
        self._ground, self._installation, self._network = ground, installation, network
        self._request, self._pull_base = request, pull_base

    async def build(self, name: ModelName, modelfile: Modelfile) -> Manifest:
        bases = [await self._base(source) for source in modelfile.sources]
        manifest = self._combine(name, bases)
        adapters = tuple([(await self._weights(text)).as_file() for text in modelfile.adapters])
        parameters = {**manifest.parameters, **modelfile.parameters}
        own = loader_options(modelfile.parameters, self._ground.options.max_context_size)
        replaced = {
            field: value
            for field in ("template", "system", "license", "messages")
            if (value := getattr(modelfile, field)) not in (None, ())
        }
        return msgspec.structs.replace(
            manifest,
            name=name.name,
            tag=name.tag,
            parameters=parameters,
            loader={**manifest.loader, **own},
            adapters=adapters or manifest.adapters,
            modified_at=timestamp(time.time()),
            **replaced,
        )

    def _combine(self, name: ModelName, bases: list[_Base]) -> Manifest:
        """One model out of all FROM lines: at most one of them is the model, another may be its projector."""
        manifests = [base.manifest for base in bases if base.manifest]
        files = [file for base in bases for file in base.files]
        says = {file: gguf.read_file(file.path)[0].metadata for file in files}
        projectors = [file for file in files if says[file].get("general.type") == "mmproj"]
        # uploads come in any order; llama.cpp wants a split model's in their own
        models = sorted((file for file in files if file not in projectors), key=lambda file: _part_number(says[file]))
        if len(manifests) + bool(models) != 1:
            raise ModelfileError("FROM must name exactly one model (and possibly its projector)")
        if manifests:
            manifest = manifests[0]
        else:
            main, shards = lay_out(self._ground, models)
            spec = f"blob://{models[0].digest}"
            manifest = describe_model(self._ground, name, spec, models, main, shards)
        return msgspec.structs.replace(manifest, projector=projectors[0].as_file()) if projectors else manifest

    async def _base(self, source: str) -> _Base:
        if (known := self._request.known(source)) is not None:
            return await self._known(known.weights)
        if source.startswith(("@", "sha256:", "sha256-")):
            return _Base(files=(await self._blob(source),))
        if paths := self._paths(source):
            return _Base(files=tuple([await self._local(path) for path in paths]))
        return _Base(manifest=await self._model(source))

    async def _known(self, weights: str) -> _Base:
        path = absolute(Path(weights))
        if is_weights_path(weights) or path.is_file():
            return _Base(files=tuple([await self._local(part) for part in model_files(path)]))
        return _Base(manifest=await self._held(self._ground.store.resolve(weights)))

    async def _weights(self, text: str) -> Brought:
        """An adapter: a blob or a file."""
        base = await self._base(text)
        if len(base.files) != 1:
            raise ModelfileError(f"ADAPTER must name one file or blob, not {text!r}")
        return base.files[0]

    async def _blob(self, text: str) -> Brought:
        digest = parse_digest(text.removeprefix("@"))
        found = await self._installation.claim(digest)
        if found is None:
            raise ModelNotFoundError(
                f"blob {digest} is not here; upload it with POST /api/blobs/{digest}", digest=digest
            )
        return found

    async def _local(self, path: Path) -> Brought:
        return await self._installation.bring(Artifact("model", local=path), self._network)

    async def _model(self, text: str) -> Manifest:
        """An installed model, pulled first if need be; all its blobs are held from here on."""
        try:
            manifest = self._ground.store.resolve(text)
        except ModelNotFoundError:
            await self._pull_base(text)
            manifest = self._ground.store.resolve(text)
        return await self._held(manifest)

    async def _held(self, manifest: Manifest) -> Manifest:
        for file in manifest.files:
            inside = Path(file.blob_path).is_relative_to(self._ground.root.path)
            if inside and await self._installation.claim(file.digest) is None:
                raise PullError(f"{manifest.model_name} was removed while it was being copied; try again")
        return manifest

    def _paths(self, source: str) -> tuple[Path, ...]:
        if self._request.directory is not None:
            return local_files(source, Path(self._request.directory))
        if _says_path(source):
            raise InvalidNameError(
                "FROM names a path; upload the file with POST /api/blobs/:digest and name the digest, or create "
                "the model with barrel-inference create, which does"
            )
        return ()


def local_files(source: str, directory: Path) -> tuple[Path, ...]:
    """The files that a FROM or ADAPTER means, if it means files: also what merely exists, as Ollama has it."""
    location = parse_spec(source).location if source.lower().startswith("file://") else source
    path = absolute(directory / Path(location).expanduser())
    if _says_path(source) or ("://" not in source and (path.is_file() or holds_weights(path))):
        return model_files(path)
    return ()


def _says_path(source: str) -> bool:
    return is_path(source) or source.lower().startswith("file://")
