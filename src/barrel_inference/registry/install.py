"""Bringing weights into the root and naming them: the part that pull and create share. An Installation owns a lease on
every blob it counts on, and a private work directory, until it ends.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from barrel_inference.errors import InvalidModelError, ManifestError, PullError, RegistryError
from barrel_inference.registry import gguf
from barrel_inference.registry.blobs import hash_file
from barrel_inference.registry.download.fetch import fetch
from barrel_inference.registry.download.network import Network
from barrel_inference.registry.download.part import UNKNOWN_SIZE, Part, Version, read_state
from barrel_inference.registry.download.server import Remote, Server
from barrel_inference.registry.files import write_atomic, writing
from barrel_inference.registry.locks import Lease
from barrel_inference.registry.manifest import File, Manifest
from barrel_inference.registry.names import ModelName, Spec
from barrel_inference.registry.sources import Artifact
from barrel_inference.registry.store import Ground, Store
from barrel_inference.threads import alone

WAIT_S = 0.25

OnStatus = Callable[[dict[str, Any]], None]
Previous = Callable[[], Manifest | None]


class Brought(NamedTuple):
    """One file that is now in the root (or a reference to the user's own), with what it says about itself."""

    digest: str
    path: Path
    size_bytes: int
    version: Version | None = None  # of the server it came from

    def as_file(self) -> File:
        return File(digest=self.digest, blob_path=str(self.path), size_bytes=self.size_bytes)


class Installation:
    def __init__(self, ground: Ground, status: OnStatus) -> None:
        self._ground, self._status = ground, status
        self._lease: Lease | None = None
        self._borrowed: list[Part] = []
        self._ended = False
        self.workdir = ground.root.tmp / f"{uuid.uuid4().hex}.work"

    async def __aenter__(self) -> Self:
        # who leaves now does not get to __aexit__, and the thread opens the lease all the same
        await self._ground.threads.run(self._open, undo=lambda _: self._close())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._ended = True
        await asyncio.shield(self._ground.threads.run(self._close))

    async def bring(self, artifact: Artifact, network: Network, previous: Previous = lambda: None) -> Brought:
        """Fetch or register one file; it is checked to be GGUF and its digest verified before it gets its name.
        ``previous`` finds the model that an earlier pull of the same spec installed."""
        if artifact.held is not None:
            return Brought(artifact.held.digest, Path(artifact.held.blob_path), artifact.held.size_bytes)
        if artifact.remote is not None:
            return await self._fetch(artifact.remote, network, previous)
        if artifact.local is None:
            raise InvalidModelError("nothing to install")
        return await self._register(artifact.local, ours=artifact.ours)

    async def claim(self, digest: str, size: int | None = None) -> Brought | None:
        """A blob that is here already and, from now on, stays."""
        if not await self._ground.threads.run(self._claim, digest, size):
            return None
        path = self._ground.blobs.path(digest)
        return Brought(digest, path, path.stat().st_size)

    async def borrow(self, remote: Remote) -> Part:
        """The part of a file that is no blob but holds some. It stays until the model is installed, so that whatever
        ends the pull before that costs nothing of it."""
        part = await self._acquire(remote)
        self._borrowed.append(part)
        return part

    async def fill(self, part: Part, remote: Remote, network: Network) -> Path:
        """Fetch a borrowed part; a digest that was promised is checked."""
        await self._download(remote, part, network)
        return part.path

    async def publish(self, manifest: Manifest, spec: Spec | None) -> Manifest:
        """Write the manifest, the one moment at which the model appears; its blobs are known to be here."""
        manifest = await self._ground.threads.run(self._publish, manifest, spec)
        for part in self._borrowed:
            part.discard()
        return manifest

    # ---- from the network

    async def claim_sound(self, digest: str, size: int | None) -> Brought | None:
        """A pull repairs: a blob that is here counts only if its bytes still are what they should be."""
        here = await self.claim(digest, size)
        if here is None or not await alone(self._ground.blobs.is_sound, digest, self._go_on):
            return None
        return here

    async def _fetch(self, remote: Remote, network: Network, previous: Previous) -> Brought:
        if remote.digest and (here := await self.claim_sound(remote.digest, remote.size)):
            self._progress(remote, here.size_bytes, here.size_bytes)
            return here
        part = await self._acquire(remote)
        try:
            if here := await self._finished_meanwhile(remote, network, previous()):
                part.discard()
                return here
            digest, version = await self._download(remote, part, network)
            self._require_gguf(part, remote.file_name)
            path = await self._ground.threads.run(self._adopt_part, part, digest)
        except BaseException:
            part.give_up()
            raise
        finally:
            part.close()
        return Brought(digest, path, path.stat().st_size, version)

    async def _acquire(self, remote: Remote) -> Part:
        """This download's part; while another process has it, wait and show how far that one is."""
        key = remote.digest or remote.url
        path = self._ground.root.tmp / f"{hashlib.sha256(key.encode()).hexdigest()}.part"
        while (part := Part.acquire(path)) is None:
            done = sum(written for written, _ in read_state(path.with_name(path.name + ".state")))
            self._progress(remote, done, remote.size)
            await asyncio.sleep(WAIT_S)
        return part

    async def _finished_meanwhile(self, remote: Remote, network: Network, previous: Manifest | None) -> Brought | None:
        """The blob, if somebody else has just brought it or the server still has the version we installed before."""
        if remote.digest:
            return await self.claim_sound(remote.digest, remote.size)
        if previous is None or previous.shards or not previous.origin.get("validator"):
            return None
        version, _ = await Server(network, remote, self._ground.options, asyncio.sleep).probe()
        if version.if_range != previous.origin["validator"] or version.size != previous.size_bytes:
            return None
        here = await self.claim_sound(previous.digest, previous.size_bytes)
        return here._replace(version=version) if here else None

    async def _download(self, remote: Remote, part: Part, network: Network) -> tuple[str, Version]:
        options, report = self._ground.options, lambda done, total: self._progress(remote, done, total)
        return await fetch(network, remote, part, options, report)

    def _require_gguf(self, part: Part, name: str) -> None:
        try:
            gguf.read_file(part.path)
        except InvalidModelError as error:
            part.discard()
            raise InvalidModelError(f"{name}: {error.message.removeprefix(f'{part.path.name}: ')}") from None

    def _progress(self, remote: Remote, completed: int, total: int | None) -> None:
        event: dict[str, Any] = {"status": f"pulling {remote.digest or remote.file_name}"}
        if remote.digest:
            event["digest"] = remote.digest
        if total is not None and total < UNKNOWN_SIZE:
            event["total"] = total
        self._status({**event, "completed": completed})

    # ---- from this machine

    async def _register(self, path: Path, *, ours: bool) -> Brought:
        gguf.read_file(path)  # refuse what is not GGUF before hashing gigabytes
        size = (await self._ground.threads.run(path.stat)).st_size

        def report(done: int) -> None:
            self._go_on(done)
            self._status({"status": f"hashing {path.name}", "total": size, "completed": done})

        digest = await alone(hash_file, path, report)
        is_sound = not ours and await alone(self._ground.blobs.is_sound, digest, self._go_on)
        bring = self._adopt if ours else functools.partial(self._link, keep=is_sound)
        target = await self._ground.threads.run(bring, path, digest)
        return Brought(digest, target, size)

    def _go_on(self, n_bytes: int) -> None:
        """Called by threads that read whole files: they end when the pull does, since nobody waits for them then."""
        if self._ended:
            raise RegistryError("the installation has ended")

    # ---- the steps that others must not see half done; each holds the root's lock

    def _open(self) -> None:
        self._ground.root.prepare()
        with self._ground.root.lock(), writing(self.workdir):
            self._lease = Lease.of(self._ground.root.tmp, [self.workdir.name])
            try:
                self.workdir.mkdir()
            except BaseException:
                self._close()
                raise

    def _close(self) -> None:
        for part in self._borrowed:
            part.give_up()
        shutil.rmtree(self.workdir, ignore_errors=True)
        if self._lease:
            self._lease.close()

    def _claim(self, digest: str, size: int | None) -> bool:
        with self._ground.root.lock():
            self._hold(digest)
            return self._ground.blobs.has(digest, size)

    def _adopt(self, path: Path, digest: str) -> Path:
        with self._ground.root.lock():
            self._hold(digest)
            return self._ground.blobs.adopt(path, digest)

    def _adopt_part(self, part: Part, digest: str) -> Path:
        with self._ground.root.lock():
            self._hold(digest)
            return self._ground.blobs.adopt(part.release(), digest)

    def _link(self, path: Path, digest: str, *, keep: bool) -> Path:
        with self._ground.root.lock():
            self._hold(digest)
            return self._ground.blobs.link(path, digest, keep=keep)

    def _hold(self, digest: str) -> None:
        if self._lease is None:
            raise RuntimeError("use Installation with async with")
        self._lease.add([digest[7:]])

    def _publish(self, manifest: Manifest, spec: Spec | None) -> Manifest:
        root, store = self._ground.root, self._ground.store
        with root.lock():
            missing = [file.digest for file in manifest.files if not Path(file.blob_path).exists()]
            if missing:
                raise PullError(f"{missing[0]} has vanished from the models directory while it was being installed")
            name = store.canonical(manifest.model_name)
            manifest = msgspec.structs.replace(
                manifest, name=name.name, tag=name.tag, extra=_kept(manifest, store, name)
            )
            store.write(manifest)
            if spec:
                write_atomic(root.refs / f"{spec.hash}.ref", manifest.blob_path.encode("utf-8", "surrogateescape"))
        return manifest


def _kept(manifest: Manifest, store: Store, name: ModelName) -> dict[str, Any]:
    """Fields that are not known here outlive a pull of the same model again."""
    try:
        old = store.find(name)
    except ManifestError:
        return manifest.extra
    return {**old.extra, **manifest.extra} if old and old.spec == manifest.spec else manifest.extra
