"""Dockerfile, compose file and systemd unit, as far as they can be checked without building or starting anything: the
files, variables, flags, ports and directories that they name exist and agree."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import typer

from barrel_inference.cli import main as cli
from barrel_inference.cli.report import EXIT_USAGE
from barrel_inference.config import RuntimeConfig
from barrel_inference.registry.files import APP
from barrel_inference.server.environment import configuration

ROOT = Path(__file__).parents[1]
PACKAGING = ROOT / "packaging"
DOCKERFILE = re.sub(r"\\\n\s*", " ", (PACKAGING / "Dockerfile").read_text(encoding="utf-8"))


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.+)$", DOCKERFILE, re.MULTILINE)


def check_command(arguments: list[str]) -> None:
    """Parsed, not run."""
    program, name, *rest = arguments
    assert PurePosixPath(program).name == "barrel-inference"
    group: Any = typer.main.get_group(cli.build([name]))
    group.commands[name].make_context(name, rest)


def check_environment(environ: dict[str, str]) -> RuntimeConfig:
    """Unknown variables and values that are not allowed raise ConfigError."""
    return configuration({name: value for name, value in environ.items() if name != "BARREL_INFERENCE_CONFIG"}, {})


# ---- the image


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    copied = [source for line in instructions("COPY") if "--from" not in line for source in line.split()[:-1]]
    assert copied
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"}
    for source in copied:
        assert (ROOT / source).exists()
        assert source in kept


def test_the_image_starts_the_server_where_it_says() -> None:
    command = json.loads(instructions("CMD")[-1])
    check_command(command)
    port = instructions("EXPOSE")[-1]
    assert any(argument.endswith(f":{port}") for argument in command)
    assert f"127.0.0.1:{port}/health/ready" in DOCKERFILE


def test_the_image_keeps_everything_in_its_volume() -> None:
    environ = dict(pair.split("=", 1) for pair in shlex.split(instructions("ENV")[-1]))
    config = check_environment(environ)
    (volume,) = instructions("VOLUME")
    for place in (config.model_cache_dir, config.cache_dir, environ["XDG_CACHE_HOME"]):
        assert PurePosixPath(str(place)).is_relative_to(volume)


def test_build_arguments_that_are_named_are_known() -> None:
    known = {line.split("=")[0] for line in instructions("ARG")}
    for page in (PACKAGING / "Dockerfile", ROOT / "docs" / "deployment.md", ROOT / "docs" / "quickstart.md"):
        assert set(re.findall(r"--build-arg (\w+)=", page.read_text(encoding="utf-8"))) <= known


def test_an_image_runs_on_other_processors_unless_told() -> None:
    assert "NATIVE=0" in instructions("ARG")


def test_the_gpus_to_compile_for_are_named() -> None:
    """``native``, what llama.cpp takes otherwise, fails where no GPU is seen, as in every build of an image."""
    assert any(line.startswith("CUDA_ARCHITECTURES=") for line in instructions("ARG"))
    assert "-DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES=$CUDA_ARCHITECTURES" in DOCKERFILE


def test_the_compose_file_agrees_with_the_image() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (the frameworks extra brings it)")
    compose = yaml.safe_load((PACKAGING / "compose.yaml").read_text(encoding="utf-8"))
    service = compose["services"]["barrel-inference"]
    context = (PACKAGING / service["build"]["context"]).resolve()
    assert (context / service["build"]["dockerfile"]).samefile(PACKAGING / "Dockerfile")
    assert set(service["build"]["args"]) <= {line.split("=")[0] for line in instructions("ARG")}
    host, _, port = service["ports"][0].rpartition(":")
    assert port == instructions("EXPOSE")[-1]
    assert host.startswith("127.0.0.1:")
    volume, _, place = service["volumes"][0].partition(":")
    assert volume in compose["volumes"] and place == instructions("VOLUME")[-1]
    config = check_environment(service["environment"])
    grace_s = float(service["stop_grace_period"].removesuffix("s"))
    assert grace_s >= config.server.drain_s + config.policy.evict_save_timeout_ms / 1000


# ---- the service


def unit() -> dict[str, dict[str, list[str]]]:
    """Section, key, its values in order."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in (PACKAGING / "barrel-inference.service").read_text(encoding="utf-8").splitlines():
        if header := re.fullmatch(r"\[(\w+)\]", line):
            section = sections.setdefault(header[1], {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section.setdefault(key, []).append(value)
    return sections


def test_the_unit_starts_the_server_with_known_variables_and_time_to_stop() -> None:
    service = unit()["Service"]
    check_command(shlex.split(service["ExecStart"][0]))
    environ = dict(pair.split("=", 1) for pair in service["Environment"])
    config = check_environment(environ)
    wait_s = config.server.drain_s + config.policy.evict_save_timeout_ms / 1000
    assert float(service["TimeoutStopSec"][0]) > wait_s
    assert service["KillMode"] == ["mixed"], "or the workers end before their answers do"
    assert service["RestartPreventExitStatus"] == [str(EXIT_USAGE)]
    writable = [PurePosixPath("/var/cache") / name for name in service["CacheDirectory"][0].split()]
    own = PurePosixPath(environ["XDG_CACHE_HOME"]) / APP
    for place in (config.model_cache_dir, config.cache_dir, own):
        assert any(PurePosixPath(str(place)).is_relative_to(each) for each in writable)


def test_the_unit_keeps_what_must_outlive_a_stop_and_hides_no_gpu() -> None:
    """RemoveIPC deletes the user's files in /dev/shm, a tmpfs tier among them, whenever the service stops."""
    assert {"RemoveIPC", "PrivateDevices", "ProtectClock", "PrivateIPC"}.isdisjoint(unit()["Service"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = (PACKAGING / "barrel-inference.service").read_text(encoding="utf-8")
    copy = tmp_path / "barrel-inference.service"
    copy.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={shutil.which('true')}", text, flags=re.MULTILINE))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "barrel-inference.service:" not in done.stdout + done.stderr


def test_the_service_page_names_files_that_are_there() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    for name in set(re.findall(r"packaging/[\w.-]+", page)):
        assert (ROOT / name).is_file()
