"""``config show`` writes what ``config check`` takes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from barrel_inference.cli.config import difference, toml_lines
from barrel_inference.cli.main import main
from barrel_inference.config import RuntimeConfig
from barrel_inference.options import layered


def test_what_is_shown_is_a_configuration_file(tmp_path: Path) -> None:
    written = {
        "server": {"port": 99, "origins": ("a", "b"), "models": {"my-model": {"model_path": "/x"}}},
        "exact": "cold",
    }
    file = tmp_path / "barrel.toml"
    file.write_text("\n".join(toml_lines(written)))
    config = layered(RuntimeConfig(), file=file, environ={}, flags={})
    assert (config.server.port, config.server.origins, config.exact) == (99, ("a", "b"), "cold")
    assert difference(msgspec.to_builtins(config), msgspec.to_builtins(RuntimeConfig())) == written


def test_all_defaults_are_a_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "barrel.toml"
    file.write_text("\n".join(toml_lines(msgspec.to_builtins(RuntimeConfig()))))
    assert layered(RuntimeConfig(), file=file, environ={}, flags={}) == RuntimeConfig()


def test_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "barrel.toml"
    file.write_text("[server]\nprot = 1\n")
    assert main(["config", "check", str(file)]) == 2
    assert "did you mean 'port'?" in capsys.readouterr().err
    for line, cure in {
        'modle_path = "/x"': "server.models.mine.modle_path'; did you mean 'model_path'",
        "context_opts = { n_ctxx = 1 }": "did you mean 'n_ctx'",
        "parameters = { temprature = 1 }": "did you mean temperature",
    }.items():
        file.write_text(f"[server.models.mine]\n{line}\n")
        assert main(["config", "check", str(file)]) == 2
        assert cure in capsys.readouterr().err
    file.write_text("[server]\nport = 8081\n[server.models.mine]\nmodel_path = '/x'\nsystem = 'Be brief.'\n")
    assert main(["config", "check", str(file)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{file} is right\n"
    assert err == "warning: model 'mine:latest': /x is neither a file nor an installed model\n"


def test_check_looks_at_the_environment_and_at_who_may_connect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "barrel.toml"
    file.write_text("[server]\nhost = '0.0.0.0'\n")
    assert main(["config", "check", str(file)]) == 0
    assert "warning: host='0.0.0.0' lets other machines connect" in capsys.readouterr().err
    monkeypatch.setenv("BARREL_INFERENCE_SERVER_PORTT", "1")
    assert main(["config", "check"]) == 2
    assert "did you mean 'BARREL_INFERENCE_SERVER_PORT'?" in capsys.readouterr().err
    assert main(["config", "check", str(file)]) == 0, "of a file that is named only the file is checked"
