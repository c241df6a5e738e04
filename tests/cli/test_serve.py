"""What ``serve`` makes of its flags before it listens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from barrel_inference.cli.main import main
from barrel_inference.cli.serve import _with_files
from barrel_inference.config import RuntimeConfig
from barrel_inference.errors import ConfigError
from barrel_inference.options import build
from tests.server.harness import STUB, RunningServer


def with_files(*preload: str, **models: object) -> RuntimeConfig:
    return _with_files(build(RuntimeConfig(), {"server": {"preload": list(preload), "models": models}}))


def test_a_file_to_preload_is_a_model_with_the_name_that_run_gives_it(tmp_path: Path) -> None:
    file = tmp_path / "My model.gguf"
    server = with_files("stub", os.path.relpath(file), str(file), stub=STUB).server
    assert server.preload == ("stub", "My-model", "My-model")
    assert server.models == {"stub": STUB, "My-model": {"model_path": str(file)}}


def test_a_configured_name_goes_before_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stub").touch()
    monkeypatch.chdir(tmp_path)
    assert with_files("stub", stub=STUB).server.models == {"stub": STUB}


def test_a_file_does_not_take_the_name_of_another_model() -> None:
    with pytest.raises(ConfigError, match="another model is called stub"):
        with_files("./stub.gguf", stub=STUB)


def test_an_address_that_another_of_us_has(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with RunningServer(tmp_path) as server:
        assert main(["serve", "--host", server.url]) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert "address already in use: a barrel-inference server runs there already" in error
