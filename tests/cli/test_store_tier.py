"""The disk tier of all commands: where it lies, and that nothing else needs it when there can be none."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from barrel_inference.cli import local
from barrel_inference.config import RuntimeConfig
from barrel_inference.errors import TierUnusableError
from barrel_inference.kvcache.quota import Quota
from tests.server.harness import STUB
from tests.support.disks import fill, small_disk
from tests.support.models import smollm2

MIB = 1 << 20
TIMEOUT_S = 120
COMMAND = [sys.executable, "-m", "barrel_inference.cli.main"]
WARNING = re.compile(r"warning: nothing is kept on disk: .* cannot be used: the disk is full\n")


@pytest.fixture
def full(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of someone whose home is full."""
    with small_disk(tmp_path / "home", 2 * MIB) as home:
        fill(home / "filler")
        yield {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home), "BARREL_INFERENCE_CONFIG": os.devnull}


def run(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], env=environ, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S
    )


@pytest.mark.model
@pytest.mark.parametrize("more", [(), ("--no-cache",)])
def test_a_full_disk_stops_no_answer(full: dict[str, str], more: tuple[str, ...]) -> None:
    done = run(full, "run", str(smollm2()), "hi", "--max-tokens", "2", *more)
    assert done.returncode == 0 and done.stdout.strip()
    assert WARNING.fullmatch(done.stderr), done.stderr


def test_nor_the_commands_that_look_at_the_store(full: dict[str, str]) -> None:
    done = run(full, "cache", "stats")
    assert done.returncode == 0
    assert WARNING.fullmatch(done.stderr), done.stderr
    done = run(full, "cache", "import", "some.tar")
    assert (done.returncode, done.stderr.count("error: ")) == (2, 1)


def test_nor_the_server(full: dict[str, str]) -> None:
    models = f'{{"stub": {{"backend": "stub", "context_opts": {{"n_ctx": {STUB["context_opts"]["n_ctx"]}}}}}}}'
    environ = full | {"BARREL_INFERENCE_SERVER_MODELS": models, "BARREL_INFERENCE_SERVER_PRELOAD": '["stub"]'}
    command = [*COMMAND, "serve", "--port", "0"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None and server.stderr is not None
            assert "listening on" in server.stdout.readline()
            assert WARNING.fullmatch(server.stderr.readline())
        finally:
            server.terminate()
        _, said = server.communicate(timeout=TIMEOUT_S)
    assert (server.returncode, "preload of" in said) == (0, False), said


def test_a_home_that_is_no_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    environ = {**os.environ, "HOME": str(file), "XDG_CACHE_HOME": str(file), "BARREL_INFERENCE_CONFIG": os.devnull}
    done = run(environ, "cache", "stats")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert done.stderr.startswith("warning: ")


def test_it_lies_beside_the_models(tmp_path: Path) -> None:
    spec = local.store(RuntimeConfig(model_cache_dir=str(tmp_path / "models")))
    assert Path(spec.path) == tmp_path / "models" / "kv_cache"


def test_what_it_holds_is_no_reason_to_hold_less(tmp_path: Path) -> None:
    """Or it would throw away the more, the fuller it has made the disk itself."""
    with small_disk(tmp_path / "disk", 64 * MIB) as disk:
        config = RuntimeConfig(model_cache_dir=str(disk))
        before = local.store(config).quota_bytes
        (disk / "kv_cache" / "object").write_bytes(bytes(24 * MIB))
        Quota(disk / "kv_cache", 0).add(24 * MIB)
        assert local.store(config).quota_bytes == pytest.approx(before, abs=MIB)


def test_models_that_may_only_be_read_leave_it_where_the_user_may_write(tmp_path: Path) -> None:
    with small_disk(tmp_path / "models", 8 * MIB) as models:
        subprocess.run(["mount", "-o", "remount,ro", str(models)], check=True)
        places = {"XDG_CACHE_HOME": str(tmp_path / "own"), "BARREL_INFERENCE_MODEL_CACHE_DIR": str(models)}
        done = run({**os.environ, **places, "BARREL_INFERENCE_CONFIG": os.devnull}, "cache", "stats", "--json")
    (tier,) = json.loads(done.stdout)["tiers"]
    assert Path(tier["path"]).is_relative_to(tmp_path / "own")


def test_the_error_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "models").touch()
    with pytest.raises(TierUnusableError, match="kv_cache cannot be used"):
        local.store(RuntimeConfig(model_cache_dir=str(tmp_path / "models")))
