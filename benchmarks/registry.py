"""Pulling beside curl and sha256sum, listing a thousand models, reading GGUF headers."""

from __future__ import annotations

import functools
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from barrel_inference.config import RegistryOpts
from barrel_inference.registry import Manifest, Registry, gguf
from barrel_inference.registry.manifest import encode, timestamp
from benchmarks.report import Spread, Table, spread
from benchmarks.setting import Setting

BLOCK = 1 << 20

# sendfile and ranges, so that the server is faster than whoever downloads
SERVER = """
import asyncio, sys
from aiohttp import web
app = web.Application()
app.router.add_get("/model.gguf", lambda request: web.FileResponse(sys.argv[1], chunk_size=1 << 20))
async def main():
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def measure(chosen: Setting) -> list[Table]:
    folder = chosen.folder("registry")
    pulled = await _pulls(folder, 64 * BLOCK if chosen.quick else 1000 * 1000 * 1000, chosen.rounds)
    return [pulled, _small(folder, chosen)]


# ---- pulling


async def _pulls(folder: Path, size: int, rounds: int) -> Table:
    """The three in turn, round after round, so that a busy moment hits all of them."""
    source, copy = _model(folder / "source.gguf", size), folder / "copy"
    times: dict[str, list[float]] = {"barrel-inference pull": [], "curl": [], "sha256sum": []}
    with _serving(source) as url:
        ways = {
            "curl": functools.partial(_run, ["curl", "-s", "-o", str(copy), url]),
            "sha256sum": functools.partial(_run, ["sha256sum", str(source)]),
        }
        for _ in range(rounds):
            times["barrel-inference pull"].append(await _pull(folder / "models", url))
            for name, way in ways.items():
                times[name].append(_timed(way))
            copy.unlink()
    table = Table("registry_pull", f"How fast is a pull of {size / 1e6:,.0f} MB from loopback, hashed and synced?")
    table.rows = [{"what": name, "s": spread(taken), "MB/s": _rate(size, taken)} for name, taken in times.items()]
    ours, curl, sha = (spread(taken).median for taken in times.values())
    table.reading = [f"{max(curl, sha) / ours:.2f} × the slower of curl and sha256sum; ours does the work of both."]
    return table


async def _pull(root: Path, url: str) -> float:
    shutil.rmtree(root, ignore_errors=True)
    registry = Registry(root, RegistryOpts(allow_private=True))
    began = time.perf_counter()
    async for _ in registry.pull(url, insecure=True):
        pass
    return time.perf_counter() - began


def _model(path: Path, size: int) -> Path:
    """A GGUF with one tensor of random bytes."""
    with path.open("wb") as file:
        file.write(_header(b"", 1, 0) + _string("weights") + struct.pack("<IQIQ", 1, size // 4, 0, 0))
        file.write(bytes(-file.tell() % 32))
        for _ in range(size // BLOCK):
            file.write(os.urandom(BLOCK))
        file.write(bytes(size % BLOCK))
    return path


@contextmanager
def _serving(path: Path) -> Iterator[str]:
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/model.gguf"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _rate(size: int, taken: list[float]) -> Spread:
    return spread([size / one / 1e6 for one in taken])


# ---- listing and reading headers


def _small(folder: Path, chosen: Setting) -> Table:
    registry = _installed(folder / "list", 1000)
    ways: dict[str, Callable[[], Any]] = {
        "list of 1,000 models, first time": lambda: Registry(registry.root).list(),
        "list of 1,000 models, again": registry.list,
        "header of the model of this run": lambda: gguf.read(chosen.model_path),
        "header with 262,144 tokens": functools.partial(gguf.read, _vocabulary(folder / "v.gguf", 262_144, 0)),
        "header with 262,144 tokens and 514,906 merges": functools.partial(
            gguf.read, _vocabulary(folder / "m.gguf", 262_144, 514_906)
        ),
    }
    registry.list()
    table = Table("registry", "How long do listing and reading GGUF headers take?")
    for name, way in ways.items():
        table.rows.append({"what": name, "ms": spread([_timed(way) * 1000 for _ in range(5 * chosen.rounds)])})
    return table


def _installed(root: Path, count: int) -> Registry:
    registry = Registry(root)
    template = "{% for message in messages %}" + "{{ message.content }}" * 200 + "{% endfor %}"
    for number in range(count):
        manifest = Manifest(
            name=f"org/model-{number}",
            tag="latest",
            spec=f"hf://org/model-{number}",
            digest=f"sha256:{number:064x}",
            blob_path=str(root / "blobs" / f"sha256-{number:064x}.gguf"),
            size_bytes=4 << 30,
            chat_template=template,
            loader={"n_ctx": 4096},
            modified_at=timestamp(number),
        )
        path = root / "manifests" / f"org:model-{number}" / "latest.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(encode(manifest))
    return registry


def _vocabulary(path: Path, n_tokens: int, n_merges: int) -> Path:
    keys = _words("tokenizer.ggml.tokens", n_tokens, 7) + _words("tokenizer.ggml.merges", n_merges, 12)
    path.write_bytes(_header(keys, 0, 2) + bytes(64))
    return path


def _words(key: str, count: int, length: int) -> bytes:
    return _string(key) + struct.pack("<IIQ", 9, 8, count) + b"".join(_string("x" * (i % length)) for i in range(count))


def _header(keys: bytes, n_tensors: int, n_keys: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys) + keys


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _timed(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
