"""``barrel-inference doctor``: what was compiled in, what the machine has, whether each cache tier can be written and
how fast, and whether a saved KV state comes back exactly. Owns nothing; its probe files are removed."""

from __future__ import annotations

import asyncio
import json as json_text
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import psutil
import typer

from barrel_inference.aio import AsyncRuntime
from barrel_inference.aio.tiers import Tiers
from barrel_inference.cli import local
from barrel_inference.cli.report import EXIT_FAILED, Json, human_bytes, one_line, print_json
from barrel_inference.config import RuntimeConfig, TierSpec
from barrel_inference.errors import BarrelError, TierUnusableError, os_reason
from barrel_inference.memory import system_memory
from barrel_inference.server import environment
from barrel_inference.worker.memory import PsutilMemory

PROBE_BYTES = 64 << 20
FEATURES_TIMEOUT_S = 60


class LlamaReport(msgspec.Struct, kw_only=True):
    """``error`` is set when the binding could not be loaded; then the rest is empty."""

    binding: str = ""
    llama_cpp: str = ""
    build: str = ""
    system: str = ""  # llama.cpp's own line: "CPU : AVX2 = 1 | OPENMP = 1 | …"
    gpu_offload: bool = False
    mmap: bool = False
    mlock: bool = False
    error: str | None = None

    def compiled_in(self) -> list[str]:
        return re.findall(r"(\w+) = 1\b", self.system)


class MachineReport(msgspec.Struct, kw_only=True):
    cores: int
    threads: int
    memory_bytes: int
    available_bytes: int


class TierReport(msgspec.Struct, kw_only=True):
    """Speeds in bytes a second; reads bypass the page cache where the system allows it."""

    name: str
    kind: str
    path: str
    free_bytes: int = 0
    writable: bool = False
    write_bytes_s: float = 0.0
    read_bytes_s: float = 0.0
    error: str | None = None


class SelfTestReport(msgspec.Struct, kw_only=True):
    """``verdict`` is "exact", or why the cache stays off for this model."""

    model: str
    layout: str = ""
    verdict: str = ""


class Report(msgspec.Struct, kw_only=True):
    llama: LlamaReport
    machine: MachineReport
    tiers: list[TierReport]
    self_test: SelfTestReport

    def healthy(self) -> bool:
        return not self.llama.error and all(tier.writable for tier in self.tiers) and self.self_test.verdict == "exact"


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    model: Annotated[str | None, typer.Argument(help="Also load this model and test its cache.")] = None,
    json: Json = False,
) -> None:
    """Check llama.cpp, the machine, the cache tiers and the cache.

    The self-test saves state, restores it and compares. Without a model it runs on the built-in stub,
    through the same worker and cache. Exits 1 when something is wrong.

    Example: barrel-inference doctor smollm2:135m
    """
    report = Report(llama=llama(), machine=machine(), tiers=tiers(), self_test=asyncio.run(self_test(model)))
    if json:
        print_json(report)
    else:
        show(report)
    if not report.healthy():
        raise typer.Exit(EXIT_FAILED)


def llama() -> LlamaReport:
    """Asked of a child process: this one must stay free of llama.cpp."""
    command = [sys.executable, "-P", "-m", "barrel_inference.engine.features"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FEATURES_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return LlamaReport(error=f"llama.cpp did not load within {FEATURES_TIMEOUT_S} s")
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return LlamaReport(error=last[0])
    return msgspec.convert(json_text.loads(done.stdout), LlamaReport)


def machine() -> MachineReport:
    memory = system_memory()
    threads = psutil.cpu_count() or 1
    return MachineReport(
        cores=psutil.cpu_count(logical=False) or threads,
        threads=threads,
        memory_bytes=memory.total,
        available_bytes=memory.available,
    )


def tiers() -> list[TierReport]:
    """The automatic tier as a runtime would make it, and the configured ones."""
    config = environment.configuration(os.environ, {})
    opened = Tiers(config, PsutilMemory())
    try:
        automatic = probe(opened.automatic().spec)
    except TierUnusableError as error:
        automatic = TierReport(name="ram", kind="ram", path=error.details["path"], error=error.message)
    finally:
        opened.close()
    return [automatic, *(map(probe, config.tiers) if config.tiers else [_store(config)])]


def _store(config: RuntimeConfig) -> TierReport:
    """The tier of all commands, where the configuration names none."""
    try:
        return probe(local.store(config))
    except TierUnusableError as error:
        return TierReport(
            name=local.STORE, kind="disk", path=error.details["path"], error=error.message.rpartition(": ")[2]
        )


def probe(spec: TierSpec, n_bytes: int = PROBE_BYTES) -> TierReport:
    """Write a file in the tier's directory and read it back, timed."""
    report = TierReport(name=spec.name, kind=spec.kind, path=spec.path)
    try:
        Path(spec.path).mkdir(parents=True, exist_ok=True)
        usage = os.statvfs(spec.path)
        report.free_bytes = usage.f_bavail * usage.f_frsize
        with tempfile.NamedTemporaryFile(dir=spec.path, prefix="doctor-") as file:
            report.write_bytes_s = _write_speed(file.fileno(), n_bytes)
            report.writable = True
            report.read_bytes_s = _read_speed(file.fileno(), n_bytes)
    except OSError as error:
        report.error = os_reason(error)
    return report


def _write_speed(fd: int, n_bytes: int) -> float:
    block = os.urandom(1 << 20)
    began = time.perf_counter()
    for _ in range(n_bytes // len(block)):
        os.write(fd, block)
    os.fsync(fd)
    return n_bytes / (time.perf_counter() - began)


def _read_speed(fd: int, n_bytes: int) -> float:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(fd, 0, os.SEEK_SET)
    began = time.perf_counter()
    while os.read(fd, 1 << 20):
        pass
    return n_bytes / (time.perf_counter() - began)


async def self_test(model: str | None) -> SelfTestReport:
    """What the worker found when it saved, restored and compared at load; nothing of it stays."""
    report = SelfTestReport(model=model or "stub")
    try:
        source = {"model_path": (await local.find(model)).path} if model else {"backend": "stub"}
        async with AsyncRuntime(RuntimeConfig()) as runtime:
            info = (await runtime.load_model(**source)).info()
    except BarrelError as error:
        report.verdict = one_line(error)
    else:
        report.layout, report.verdict = info.cache_layout, info.cache_verdict
    return report


def show(report: Report) -> None:
    llama, machine, test = report.llama, report.machine, report.self_test
    _line("llama.cpp", llama.error or f"{llama.llama_cpp}, llama-cpp-python {llama.binding}", bool(llama.error))
    if not llama.error:
        _line("compiled in", " ".join(llama.compiled_in()))
        _line("GPU offload", "yes" if llama.gpu_offload else "no")
    _line("cores", f"{machine.cores} ({machine.threads} threads)")
    _line("memory", f"{human_bytes(machine.available_bytes)} free of {human_bytes(machine.memory_bytes)}")
    for tier in report.tiers:
        _line(f"tier {tier.name}", _tier_line(tier), not tier.writable)
    _line("self-test", f"{test.model}: {test.verdict}", test.verdict != "exact")


def _tier_line(tier: TierReport) -> str:
    if tier.error:
        return f"{tier.path} cannot be used: {tier.error}"
    speeds = f"writes {human_bytes(tier.write_bytes_s)}/s, reads {human_bytes(tier.read_bytes_s)}/s"
    return f"{tier.path}, {human_bytes(tier.free_bytes)} free, {speeds}"


def _line(name: str, value: Any, wrong: bool = False) -> None:
    typer.echo(f"{'✗' if wrong else '✓'} {name:<12} {value}")
