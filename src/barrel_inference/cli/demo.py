"""``barrel-inference demo``: the main job on a real model. One long prompt is asked four times: cold, again at once,
after the worker was killed, and in a new process after the runtime has ended.

Owns a temporary directory with the disk tier, so that every run starts cold and nothing stays.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from barrel_inference.aio import AsyncModel
from barrel_inference.chat.events import Content
from barrel_inference.cli import local
from barrel_inference.cli.report import EXIT_FAILED, Json, print_json, table
from barrel_inference.config import RuntimeConfig, TierSpec
from barrel_inference.errors import WorkerDiedError
from barrel_inference.types import Completion

QUOTA_BYTES = 2 << 30
CONTEXT = {"n_ctx": 4096, "decode_budget_ms": 0}  # no time limits: a busy machine shows the same, later
READY_TIMEOUT_S = 600.0
ANSWER_TOKENS = 48
RESULT = "restarted.json"
HEAD = ("asked", "prefix from", "restored", "prefilled", "first token", "speed-up", "same text")

ENTRIES = 62  # about 2,400 tokens with every tokenizer
SHIPS = ("Heron", "Kittiwake", "Avocet", "Petrel", "Curlew", "Dunlin", "Plover")
CARGOES = ("salt", "oak staves", "tallow", "copper wire", "barley", "lamp oil", "slate", "hemp rope", "tea")
PORTS = ("Bergen", "Porto", "Danzig", "Leith", "Bristol")


class Step(msgspec.Struct, kw_only=True):
    """One of the four answers. ``first_token_s`` is taken on the caller's own clock."""

    name: str
    source: str
    restored: int
    prefilled: int
    first_token_s: float
    text: str


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    model: Annotated[str, typer.Argument(help="A GGUF file, or a name.")] = "smollm2:135m",
    continue_in: Annotated[Path | None, typer.Option(hidden=True)] = None,
    json: Json = False,
) -> None:
    """Ask a long prompt cold, again, after a crash, after a restart.

    Ends with a table of what was restored, when the first token came, and whether the text is the same.

    Example: barrel-inference demo
    """
    if continue_in is not None:
        step = asyncio.run(_after_restart(model, continue_in, quiet=json))
        (continue_in / RESULT).write_bytes(msgspec.json.encode(step))
        return
    if not json:
        typer.echo("One prompt of more than 2,000 tokens, asked four times; reading it takes the first one a while.")
    with tempfile.TemporaryDirectory(prefix="barrel-demo-") as folder:
        steps = asyncio.run(_in_one_runtime(model, Path(folder), quiet=json))
        steps.append(_in_a_new_process(model, Path(folder), quiet=json))
    if json:
        print_json(steps)
    else:
        typer.echo("\n" + compared(steps))
    if any(step.text != steps[0].text for step in steps):
        raise typer.Exit(EXIT_FAILED)


async def _in_one_runtime(model_name: str, folder: Path, quiet: bool) -> list[Step]:
    async with local.loaded(await local.find(model_name), _config(folder), context_opts=CONTEXT) as model:
        cold = await _ask(model, "cold", quiet)
        again = await _ask(model, "again", quiet)
        await _kill_worker(model)
        return [cold, again, await _ask(model, "worker killed", quiet)]


async def _after_restart(model_name: str, folder: Path, quiet: bool) -> Step:
    async with local.loaded(await local.find(model_name), _config(folder), context_opts=CONTEXT) as model:
        return await _ask(model, "restarted", quiet)


def _in_a_new_process(model_name: str, folder: Path, quiet: bool) -> Step:
    command = [sys.executable, "-m", "barrel_inference.cli.main", "demo", model_name, f"--continue-in={folder}"]
    done = subprocess.run([*command, "--json"] if quiet else command, check=False)
    if done.returncode:  # it has said why
        raise typer.Exit(done.returncode)
    return msgspec.json.decode((folder / RESULT).read_bytes(), type=Step)


def _config(folder: Path) -> RuntimeConfig:
    tier = TierSpec(name="disk", kind="disk", path=str(folder / "kv"), quota_bytes=QUOTA_BYTES)
    return RuntimeConfig(tiers=(tier,), ready_timeout_s=READY_TIMEOUT_S)


async def _kill_worker(model: AsyncModel) -> None:
    """SIGKILL, then wait for the next worker."""
    pid = model.info().worker_pid
    if pid is None:
        raise WorkerDiedError("the model has no worker")
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + READY_TIMEOUT_S
    while (info := model.info()).phase != "ready" or info.worker_pid == pid:
        if time.monotonic() > deadline:
            raise WorkerDiedError(f"no new worker within {READY_TIMEOUT_S:.0f} s")
        await asyncio.sleep(0.01)


async def _ask(model: AsyncModel, name: str, quiet: bool) -> Step:
    """Stream the answer to the long prompt; what it took."""
    if not quiet:
        typer.echo(f"\n— {name}: ", nl=False)
    began, first_token_s = time.perf_counter(), 0.0
    stream = model.chat_stream([{"role": "user", "content": prompt()}], max_tokens=ANSWER_TOKENS, temperature=0.0)
    async for event in stream:
        first_token_s = first_token_s or time.perf_counter() - began
        if not quiet and isinstance(event, Content):
            typer.echo(event.text, nl=False)
    if not quiet:
        typer.echo()
    return _step(name, (await stream.result()).completion, first_token_s)


def _step(name: str, completion: Completion, first_token_s: float) -> Step:
    cache = completion.cache
    return Step(
        name=name,
        source=cache.tier or "nowhere",
        restored=cache.restored_tokens,
        prefilled=cache.prefilled_tokens,
        first_token_s=first_token_s,
        text=completion.text,
    )


def prompt() -> str:
    """A harbour log of at least 2,000 tokens and a question about it; the same text every time."""
    lines = [
        f"{day + 1}. The {SHIPS[day % 7]} came in from {PORTS[day % 5]} with {12 + day * 7 % 90} casks of "
        f"{CARGOES[day % 9]}; {3 + day % 4} hands were paid, and the tide turned at {day * 3 % 12 + 1} o'clock."
        for day in range(ENTRIES)
    ]
    return "Read this harbour log.\n\n" + "\n".join(lines) + "\n\nSay in two sentences what it is about."


def compared(steps: list[Step]) -> str:
    """A line for each answer, beside the first."""
    cold_s, text = steps[0].first_token_s, steps[0].text
    rows = [
        (
            step.name,
            step.source,
            f"{step.restored:,}",
            f"{step.prefilled:,}",
            f"{step.first_token_s:.3f} s",
            f"{cold_s / step.first_token_s:.0f} ×",
            "yes" if step.text == text else "NO",
        )
        for step in steps
    ]
    return table([HEAD, *rows], numbers=range(2, 6))
