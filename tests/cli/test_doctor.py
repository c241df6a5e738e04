"""What doctor finds out about the machine and its tiers."""

from __future__ import annotations

from pathlib import Path

import pytest

from barrel_inference.cli import doctor
from barrel_inference.config import TierSpec

MIB = 1 << 20


def _tier(path: Path) -> TierSpec:
    return TierSpec(name="t", kind="disk", path=str(path), quota_bytes=MIB)


def _report(**changes: object) -> doctor.Report:
    good = {
        "llama": doctor.LlamaReport(binding="0.3.36", build="b1", system="CPU : AVX2 = 1 | AMX = 0 | OPENMP = 1 |"),
        "machine": doctor.machine(),
        "tiers": [doctor.TierReport(name="t", kind="disk", path="/t", writable=True)],
        "self_test": doctor.SelfTestReport(model="stub", verdict="exact"),
    }
    return doctor.Report(**(good | changes))  # type: ignore[arg-type]


def test_the_machine_has_cores_and_memory() -> None:
    machine = doctor.machine()
    assert 1 <= machine.cores <= machine.threads
    assert 0 < machine.available_bytes <= machine.memory_bytes


def test_what_was_compiled_in_is_read_off_the_librarys_own_line() -> None:
    report = doctor.LlamaReport(system="CPU : AVX2 = 1 | AMX_INT8 = 0 | OPENMP = 1 | ")
    assert report.compiled_in() == ["AVX2", "OPENMP"]


def test_a_tier_that_works_is_measured_and_left_clean(tmp_path: Path) -> None:
    report = doctor.probe(_tier(tmp_path / "new"), n_bytes=4 * MIB)
    assert report.writable and report.error is None
    assert report.write_bytes_s > 0 and report.read_bytes_s > 0 and report.free_bytes > 0
    assert list((tmp_path / "new").iterdir()) == []


def test_a_tier_that_is_a_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    report = doctor.probe(_tier(tmp_path / "file"))
    assert not report.writable and report.error


@pytest.mark.parametrize(
    "changes",
    [
        {"llama": doctor.LlamaReport(error="no libllama")},
        {"tiers": [doctor.TierReport(name="t", kind="disk", path="/t", error="read-only")]},
        {"self_test": doctor.SelfTestReport(model="m", verdict="restored logits differ")},
    ],
)
def test_one_thing_wrong_makes_it_unhealthy_and_marks_its_line(
    changes: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    report = _report(**changes)
    doctor.show(report)
    assert not report.healthy()
    assert sum(line.startswith("✗") for line in capsys.readouterr().out.splitlines()) == 1


def test_all_well_is_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    report = _report()
    doctor.show(report)
    assert report.healthy()
    assert "✗" not in capsys.readouterr().out
