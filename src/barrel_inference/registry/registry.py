"""``Registry``: the one door to installed models, for the server, the Python API and the CLI. It owns the pulls that
are running in this process; everything lasting is on disk, shared with other processes.

Methods are synchronous and take milliseconds, except ``pull``, ``create``, ``receive_blob``, ``hold`` and ``search``
(async) and ``verify``, which reads every byte. Those that change something wait for other processes that do: an event
loop asks for them with ``aside``.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from barrel_inference.config import RegistryOpts, RuntimeConfig
from barrel_inference.errors import (
    InvalidModelError,
    InvalidNameError,
    ModelNotFoundError,
    ReadOnlyError,
    RegistryError,
)
from barrel_inference.registry import gguf, gotemplate
from barrel_inference.registry.blobs import Blobs, hash_file, linked_parts, require_digest
from barrel_inference.registry.feed import Event, Feed
from barrel_inference.registry.files import Root, absolute, default_root, writing
from barrel_inference.registry.locks import Lease
from barrel_inference.registry.manifest import Manifest, timestamp
from barrel_inference.registry.modelfile import Modelfile, check_parameters, loader_options, render
from barrel_inference.registry.modelfile.parameters import IGNORED, known
from barrel_inference.registry.names import (
    ModelName,
    is_weights_path,
    name_of,
    parse_digest,
    parse_name,
    parse_spec,
    tagged,
)
from barrel_inference.registry.store import Ground, Listing, Store
from barrel_inference.threads import Threads

if TYPE_CHECKING:
    from barrel_inference.registry.create import CreateRequest
    from barrel_inference.registry.gc import Removed


T = TypeVar("T")
N_THREADS = 8  # most of them wait for the one lock
_HEX = re.compile(r"sha256-([0-9a-f]{64})\.")


class Located(NamedTuple):
    """What to load: a file, and its manifest when it is an installed model."""

    path: Path
    manifest: Manifest | None


class Verified(NamedTuple):
    """One file re-hashed; ``problem`` is None when it is what it should be."""

    name: str
    digest: str
    problem: str | None


class Registry:
    """``configured``: names of ``server.models``, which hide what is installed under them: nothing more is."""

    def __init__(
        self, root: Path | None = None, options: RegistryOpts | None = None, configured: Iterable[str] = ()
    ) -> None:
        self._configured = frozenset(configured)
        tree = Root(root or default_root())
        self._ground = Ground(tree, Blobs(tree), Store(tree), options or RegistryOpts(), Threads(N_THREADS, "registry"))
        self._pulls: dict[tuple[str, str, bool], Feed] = {}
        self.pulls_ended = {"succeeded": 0, "failed": 0, "stopped": 0}  # by this process

    @classmethod
    def configured(cls, config: RuntimeConfig, environ: Mapping[str, str] = os.environ) -> Registry:
        """As the configuration says; HF_TOKEN and HF_ENDPOINT count where it says nothing."""
        options, endpoint = config.registry, config.registry.hf_endpoint
        if endpoint == RegistryOpts().hf_endpoint:
            endpoint = environ.get("HF_ENDPOINT") or endpoint
        token = options.hf_token or environ.get("HF_TOKEN") or None
        options = msgspec.structs.replace(options, hf_token=token, hf_endpoint=endpoint.rstrip("/"))
        root = Path(config.model_cache_dir) if config.model_cache_dir else None
        return cls(root, options, map(tagged, config.server.models))

    @property
    def root(self) -> Path:
        return self._ground.root.path

    @property
    def options(self) -> RegistryOpts:
        return self._ground.options

    @property
    def pulls_running(self) -> int:
        return sum(feed.is_running for feed in self._pulls.values())

    def close(self) -> None:
        """End the threads that wait for work."""
        self._ground.threads.close()

    async def aside(self, work: Callable[..., T], /, *args: Any, **options: Any) -> T:
        """One of the methods here, on a thread of the registry's own: neither the loop nor requests wait with it."""
        return await self._ground.threads.run(functools.partial(work, *args, **options))

    # ---- looking

    def list(self) -> Listing:
        """All installed models, newest first, and the manifests that cannot be read."""
        return self._ground.store.list()

    def resolve(self, text: str) -> Manifest:
        """The installed model that a name or spec means. Raises ModelNotFoundError, and InvalidNameError for one that
        is of the configuration alone."""
        try:
            return self._ground.store.resolve(text)
        except ModelNotFoundError:
            if tagged(text) not in self._configured:
                raise
        raise InvalidNameError(
            f"model '{text}' is not installed: the configuration describes it (server.models)", name=text
        )

    def _free(self, name: ModelName) -> ModelName:
        """A name to install something under. Raises InvalidNameError."""
        if str(name) in self._configured:
            raise InvalidNameError(
                f"the name '{name}' is one of the configuration's (server.models): take another", name=str(name)
            )
        return name

    def locate(self, text: str | os.PathLike[str]) -> Located:
        """What ``run`` and ``load_model`` are to load: an installed model by name or spec, or a GGUF file by path."""
        name = os.fspath(text)
        path = absolute(Path(name))
        if is_weights_path(name) or path.is_file():
            return Located(path, None)
        manifest = self.resolve(name)
        if not Path(manifest.blob_path).exists():
            raise ModelNotFoundError(f"the weights of {manifest.model_name} are gone; pull it again", model=name)
        return Located(Path(manifest.blob_path), manifest)

    def info(self, text: str) -> gguf.GgufInfo:
        """The GGUF's own metadata and tensors, read from the file."""
        return gguf.read(self.locate(text).path)

    def modelfile(self, manifest: Manifest) -> str:
        """A Modelfile that makes the same model again, by name: server paths are nobody's business."""
        value = Modelfile(
            sources=(str(manifest.model_name),),
            parameters=manifest.parameters,
            system=manifest.system,
            template=manifest.template,
            messages=manifest.messages,
            license=manifest.license,
        )
        return f"# Modelfile of {manifest.model_name}\n{render(value)}"

    # ---- changing

    def copy(self, source: str, destination: str) -> Manifest:
        """A second name for the same blob; an existing destination is replaced."""
        name = self._free(parse_name(destination))
        self._ground.root.prepare()
        with self._ground.root.lock():
            name = self._ground.store.canonical(name)
            manifest = msgspec.structs.replace(self.resolve(source), name=name.name, tag=name.tag)
            self._ground.store.write(manifest)
        return manifest

    def remove(self, text: str) -> None:
        """Forget a name; its blob stays until ``gc`` finds that nothing else refers to it."""
        self._ground.root.prepare()
        with self._ground.root.lock():
            try:
                name = self.resolve(text).model_name
            except (ModelNotFoundError, InvalidNameError):
                name = name_of(text)  # an unreadable manifest can still be removed
                if not self._ground.store.is_broken(name):
                    raise
            self._ground.store.remove(name)

    def edit(
        self,
        text: str,
        *,
        parameters: dict[str, Any] | None = None,
        unset: Iterable[str] = (),
        system: str | None = None,
        template: str | None = None,
    ) -> Manifest:
        """Change parameters, SYSTEM or TEMPLATE in place, atomically. An empty text removes one."""
        changes = check_parameters(parameters or {})
        if template:
            gotemplate.check(template)
        self._ground.root.prepare()
        with self._ground.root.lock():
            old = self.resolve(text)
            manifest = self._edited(old, changes, frozenset(unset))
            if system is not None:
                manifest = msgspec.structs.replace(manifest, system=system or None)
            if template is not None:
                manifest = msgspec.structs.replace(manifest, template=template or None)
            self._ground.store.write(manifest)
        return manifest

    def _edited(self, old: Manifest, changes: dict[str, Any], unset: frozenset[str]) -> Manifest:
        cap = self.options.max_context_size
        for name in unset.difference(old.parameters, IGNORED):
            known(name)
        kept = {name: value for name, value in old.parameters.items() if name not in unset}
        parameters = {**kept, **changes}
        stale = loader_options(old.parameters, cap).keys() - loader_options(parameters, cap).keys()
        loader = {key: value for key, value in old.loader.items() if key not in stale}
        if "n_ctx" in stale:
            loader["n_ctx"] = min(old.context_size or cap, cap)
        return msgspec.structs.replace(
            old,
            parameters=parameters,
            loader={**loader, **loader_options(parameters, cap)},
            modified_at=timestamp(time.time()),
        )

    def gc(self, *, dry_run: bool = False) -> Sequence[Removed]:
        """Remove what nothing refers to; returns each thing with the bytes it gave back."""
        from barrel_inference.registry.gc import collect

        return collect(self._ground, time.time(), dry_run=dry_run)

    def verify(self, names: Iterable[str] = ()) -> Iterator[Verified]:
        """Hash every file of the named models, or of all, and say which are not what their digest says."""
        manifests = [self.resolve(name) for name in names] or self.list().manifests
        for broken in self.list().broken if not names else ():
            yield Verified(broken.name, "", broken.reason)
        checked: dict[tuple[str, str], str | None] = {}
        for manifest in manifests:
            for file in manifest.files:
                key = (file.digest, file.blob_path)
                if key not in checked:
                    checked[key] = _problem(Path(file.blob_path), file.digest)
                yield Verified(str(manifest.model_name), file.digest, checked[key])

    def hold_files(self, *paths: Path) -> contextlib.AbstractContextManager[object]:
        """While they are loaded: gc of any process spares them, and of a split model all parts. Files that are not of
        this root need no holding. They are held from the call on; only their release does not wait for the lock."""
        blobs = os.fspath(self._ground.root.blobs) + os.sep
        files = [os.fspath(file) for path in paths for file in (path, *linked_parts(path))]
        hexes = [match[1] for file in files if file.startswith(blobs) and (match := _HEX.search(file))]
        lease = self._lease(hexes) if hexes else None
        return contextlib.nullcontext() if lease is None else contextlib.closing(lease)

    async def hold(self, *paths: Path) -> contextlib.AbstractContextManager[object]:
        """``hold_files`` for an event loop."""
        return await self._ground.threads.run(self.hold_files, *paths, undo=_release)

    def _lease(self, held: Sequence[str]) -> Lease | None:
        """None where nothing can be written: there is no gc either."""
        with contextlib.suppress(ReadOnlyError):
            self._ground.root.prepare()
            with self._ground.root.lock():
                return Lease.of(self._ground.root.tmp, held)
        return None

    # ---- fetching and making

    async def pull(self, spec: str, *, name: str | None = None, insecure: bool = False) -> AsyncGenerator[Event, None]:
        """Install a model, yielding progress events. A pull of the same spec that is running here is joined; the
        download stops when its last caller leaves (closes the iterator), and what is there is kept for the next time.
        """
        from barrel_inference.registry.pull import pull

        async def job(status: Any) -> None:
            outcome = "stopped"
            try:
                await pull(self._ground, parsed, target, insecure, status)
                outcome = "succeeded"
            except Exception:
                outcome = "failed"
                raise
            finally:
                self.pulls_ended[outcome] += 1

        parsed, target = parse_spec(spec), self._free(parse_name(name) if name else name_of(spec))
        if parsed.scheme == "file":
            parsed = parsed._replace(location=str(absolute(Path(parsed.location))))
        key = (parsed.canonical, str(target), insecure)
        feed = self._pulls.get(key)
        if feed is None or not feed.is_running:
            feed = Feed(job)
            self._pulls[key] = feed
        async with contextlib.aclosing(feed.watch()) as events:
            try:
                async for event in events:
                    yield event
            finally:
                if not feed.is_running and self._pulls.get(key) is feed:
                    del self._pulls[key]

    async def create(self, name: str, request: CreateRequest) -> AsyncGenerator[Event, None]:
        """Make a model from a Modelfile or from fields, yielding progress events."""
        from barrel_inference.registry.create import create

        target = self._free(parse_name(name))

        async def job(status: Any) -> None:
            async def pull_base(text: str) -> None:
                async for event in self.pull(text, insecure=request.insecure):
                    if event["status"] != "success":
                        status(event)

            await create(self._ground, target, request, pull_base, status)

        async with contextlib.aclosing(Feed(job).watch()) as events:
            async for event in events:
                yield event

    async def search(self, query: str, *, limit: int = 20) -> Sequence[dict[str, Any]]:
        """GGUF repositories of the Hub that match."""
        from barrel_inference.registry.sources.huggingface import search_hub

        return await search_hub(query, limit, self.options)

    # ---- uploads

    def has_blob(self, digest: str) -> bool:
        return self._ground.blobs.has(parse_digest(digest))

    async def receive_blob(self, digest: str, content: AsyncIterator[bytes]) -> bool:
        """Store an uploaded file under the digest it must have. False: it was here already. ``DigestMismatchError``."""
        expected = parse_digest(digest)
        if await self.aside(self.has_blob, expected):
            return False
        threads, path = self._ground.threads, self._ground.root.tmp / f"{uuid.uuid4().hex}.upload"
        lease = await threads.run(self._lease_upload, path, undo=Lease.close)
        try:
            actual = await self._receive(content, path)
            require_digest(expected, actual)
            await threads.run(self._adopt_upload, path, expected)
        finally:
            with contextlib.suppress(OSError):  # the next gc removes it
                path.unlink(missing_ok=True)
            lease.close()
        return True

    def _lease_upload(self, path: Path) -> Lease:
        self._ground.root.prepare()
        with writing(path):
            return Lease.of(path.parent, [path.name])

    async def _receive(self, content: AsyncIterator[bytes], path: Path) -> str:
        digest, run = hashlib.sha256(), self._ground.threads.run
        with writing(path), path.open("xb") as file:
            async for block in content:
                digest.update(block)
                await run(file.write, block)
            await run(file.flush)
            await run(os.fsync, file.fileno())
        return f"sha256:{digest.hexdigest()}"

    def _adopt_upload(self, path: Path, digest: str) -> None:
        from barrel_inference.registry.gc import mark_uploaded

        with self._ground.root.lock():
            mark_uploaded(self._ground.root.tmp, digest)
            self._ground.blobs.adopt(path, digest)


def _release(held: contextlib.AbstractContextManager[object]) -> None:
    held.__exit__(None, None, None)


def _problem(path: Path, digest: str) -> str | None:
    try:
        actual = hash_file(path)
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return str(error)
    except (RegistryError, InvalidModelError) as error:
        return error.message
    return None if actual == digest else f"its content has the digest {actual}"
