"""Weights in memory, on real files and a real kernel: advised, counted, locked, and refused."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from barrel_inference.config import ModelOpts
from barrel_inference.engine.residency import FRESH_S, Residency, resolved

SIZE = (8 << 20) + 1000
PINNED = ModelOpts(pin_resident_after_first_request=True)

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux' account of the process")


def status(field: str) -> int:
    """A size of /proc/self/status, in bytes."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) * 1024


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(SIZE))
    return path


@pytest.fixture
def pinned(weights: Path) -> Iterator[Residency]:
    residency = Residency([weights], PINNED)
    yield residency
    residency.close()


def test_the_modes_stand_for_three_options() -> None:
    def short(mode: str) -> tuple[bool, bool, bool, bool]:
        opts = resolved(ModelOpts(weight_residency=mode))  # type: ignore[arg-type]
        return opts.use_mmap, opts.use_mlock, opts.prefetch, opts.pin_resident_after_first_request

    assert short("eager") == (True, False, True, False)
    assert short("lazy") == (True, False, False, False)
    assert short("pinned") == (True, True, True, False)
    assert short("lazy_then_pin_resident") == (True, False, False, True)
    own = ModelOpts(use_mlock=True, prefetch=False)
    assert resolved(own) == own


@pytest.mark.parametrize("prefetch", [True, False])
def test_without_prefetch_pages_are_taken_in_on_first_touch(weights: Path, prefetch: bool) -> None:
    residency = Residency([weights], ModelOpts(prefetch=prefetch))
    residency.advise()
    _, _, ours = Path("/proc/self/smaps").read_text().partition(str(weights))
    flags = next(line.split()[1:] for line in ours.splitlines() if line.startswith("VmFlags:"))
    residency.close()
    assert ("rr" in flags) is not prefetch  # random reads: nothing is read ahead


def test_resident_bytes_are_counted_and_the_count_is_kept_a_while(weights: Path) -> None:
    now = 0.0
    residency = Residency([weights, weights], ModelOpts(), clock=lambda: now)
    residency.advise()
    weights.read_bytes()
    assert residency.measure().resident_bytes == 2 * SIZE
    residency.close()
    assert residency.measure().resident_bytes == 2 * SIZE
    now = FRESH_S
    assert residency.measure().resident_bytes == 0


def test_without_mmap_there_is_nothing_to_count(weights: Path) -> None:
    residency = Residency([weights], ModelOpts(use_mmap=False))
    residency.advise()
    assert residency.measure() == residency.measure()
    assert residency.measure().resident_bytes == 0


def test_what_the_binding_cannot_do_is_said(weights: Path) -> None:
    residency = Residency([weights], resolved(ModelOpts(weight_residency="lazy")))
    residency.advise()
    assert "by itself" in residency.measure().warnings[0]
    residency.close()


def test_touched_pages_are_locked_once_and_given_back(pinned: Residency, weights: Path) -> None:
    weights.read_bytes()
    before, copies_before = status("VmLck"), status("RssAnon")
    pinned.pin_resident()
    pinned.pin_resident()
    assert SIZE <= status("VmLck") - before < SIZE + 8192
    assert status("RssAnon") - copies_before < SIZE / 2  # the pages themselves, no copies of them
    assert pinned.measure().warnings == ()
    pinned.close()
    assert status("VmLck") == before


def test_nothing_is_locked_unless_asked_for(weights: Path) -> None:
    residency = Residency([weights], ModelOpts())
    before = status("VmLck")
    residency.pin_resident()
    assert status("VmLck") == before
    residency.close()


def test_a_refusal_is_a_warning(weights: Path) -> None:
    weights.parent.chmod(0o755)
    script = f"""
        import os, resource
        from pathlib import Path
        from barrel_inference.config import ModelOpts
        from barrel_inference.engine.residency import Residency
        residency = Residency([Path({str(weights)!r})], ModelOpts(pin_resident_after_first_request=True))
        residency.advise()
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        if os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)  # root may lock what it likes
        residency.pin_resident()
        print(residency.measure().warnings)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "could not all be locked" in run.stdout
