"""What every benchmark stands on: the model, private cache directories, prompts of an exact length, timed answers.

Owns a temporary directory per ``Setting``; everything in it is removed at the end.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import psutil

from barrel_inference import AsyncModel, AsyncRuntime
from barrel_inference.config import RuntimeConfig
from barrel_inference.types import Completion, TierKind

GIB = 1 << 30
SENTENCE = (
    "the river takes its colour from the sky and a barrel of salt stood by the old mill where men counted sacks all "
    "morning until rain came over the hill and each clerk wrote down what was owed to whom in a long green book"
)


@dataclass(frozen=True)
class Setting:
    """``rounds``: how often each figure is taken; ``quick``: small sizes, to see that it runs."""

    model_path: str
    scratch: Path
    rounds: int = 3
    quick: bool = False
    lengths: tuple[int, ...] = ()  # of prompts, where a benchmark has several; () = its own
    only: tuple[str, ...] = ()  # figures, of ``server``; () = all
    llama_server: str | None = None  # the program; None: the one on the PATH, if any

    @property
    def threads(self) -> int:
        return psutil.cpu_count(logical=False) or 1

    def folder(self, name: str) -> Path:
        """A fresh directory on the disk."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.scratch))


@contextlib.contextmanager
def setting(model_path: str, rounds: int, quick: bool, **wishes: Any) -> Iterator[Setting]:
    """``wishes``: the other fields."""
    scratch = Path(tempfile.mkdtemp(prefix="barrel-bench-", dir=Path.cwd()))
    try:
        yield Setting(model_path, scratch, rounds, quick, **wishes)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def tmpfs_folder() -> Iterator[Path]:
    """A directory in memory, as an operator would name one for ``ram_file``."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="barrel-bench-", dir=base))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.asynccontextmanager
async def loaded(
    chosen: Setting, *, tier: TierKind = "ram", folder: Path | None = None, **options: Any
) -> AsyncIterator[AsyncModel]:
    """A runtime of its own with the model loaded and its weights touched; closed, and thereby saved, at the end."""
    async with AsyncRuntime(RuntimeConfig()) as runtime:
        if folder is not None:
            runtime.start_tier("bench", tier, str(folder), 20 * GIB)
            options |= {"tier": tier, "tier_srv": "bench"}
        options.setdefault("context_opts", {"n_ctx": 2048})
        options.setdefault("model_path", chosen.model_path)
        model = await runtime.load_model("bench", **options)
        await model.complete([5, 6, 7], max_tokens=4, cache="off")
        yield model


class Tokeniser(Protocol):
    async def tokenize(self, text: str, /) -> list[int]: ...


async def prompt(model: Tokeniser, n_tokens: int, seed: int) -> list[int]:
    """Exactly ``n_tokens`` tokens of harmless text; another seed is another text from the first word on."""
    chosen, text, words = random.Random(seed), f"Report {seed}: ", SENTENCE.split()
    while len(tokens := await model.tokenize(text)) < n_tokens:
        text += " ".join(chosen.choices(words, k=n_tokens)) + ". "
    return list(tokens[:n_tokens])


@dataclass
class Answer:
    """One timed request. Seconds on the caller's own clock."""

    first_token_s: float
    total_s: float
    completion: Completion
    arrivals: list[float] = field(default_factory=list)  # perf_counter at each chunk that brought tokens
    counts: list[int] = field(default_factory=list)  # tokens each of them brought

    @property
    def restored(self) -> int:
        return self.completion.cache.restored_tokens

    @property
    def prefilled(self) -> int:
        return self.completion.cache.prefilled_tokens

    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.arrivals)]


async def ask(model: AsyncModel, tokens: list[int], n_tokens: int = 16, **params: Any) -> Answer:
    """Greedy, to the full ``n_tokens`` whatever the model would like."""
    params = {"max_tokens": n_tokens, "temperature": 0.0, "ignore_eos": True} | params
    began = time.perf_counter()
    arrivals, counts, completion = [], [], None
    async for chunk in model.stream(tokens, **params):
        if chunk.tokens:
            arrivals.append(time.perf_counter())
            counts.append(len(chunk.tokens))
        completion = chunk.completion or completion
    if completion is None or not arrivals:
        raise RuntimeError("the stream ended without a token")
    return Answer(arrivals[0] - began, time.perf_counter() - began, completion, arrivals, counts)


def steady_rate(answers: list[Answer]) -> float:
    """Tokens a second while all of them were being answered: from the last first token to the first last one."""
    start, stop = max(answer.arrivals[0] for answer in answers), min(answer.arrivals[-1] for answer in answers)
    tokens = sum(
        count
        for answer in answers
        for arrival, count in zip(answer.arrivals, answer.counts, strict=True)
        if start < arrival <= stop
    )
    return tokens / (stop - start)


def objects(folder: Path) -> list[Path]:
    """The files that hold KV in a tier directory."""
    return [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 4096]


def forget_pages(folder: Path) -> None:
    """Drop a directory from the page cache, so that reading it reads the disk."""
    for path in objects(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_bandwidth(folder: Path) -> float:
    """Bytes a second of reading every object of a tier, one after the other, as they lie there now."""
    paths, n_bytes = objects(folder), 0
    buffer = bytearray(8 << 20)
    began = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                n_bytes += count
    return n_bytes / (time.perf_counter() - began)
