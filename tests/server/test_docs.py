"""Every curl command of docs/api.md works as it stands there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.server.harness import RunningServer

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
ADDRESS = "http://127.0.0.1:8080"


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [command for block in blocks for command in re.split(r"\n(?=curl )", block.strip())]


@pytest.fixture(scope="module")
def folder(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands run, with the file that one of them writes and another reads. Their prompt is too short to be
    kept; what it is the beginning of is not."""
    here = tmp_path_factory.mktemp("docs")
    prompt = {"model": "stub", "prompt": "A long text that will be asked about." * 10}
    server.post("/api/cache/prefill", prompt)
    request = Request(f"{server.url}/api/cache/export", json.dumps(prompt).encode())
    with urlopen(request, timeout=60) as response:
        (here / "warm.tar").write_bytes(response.read())
    return here


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("command", commands(), ids=lambda command: command.split()[2].removeprefix(ADDRESS))
def test_curl_example(server: RunningServer, folder: Path, command: str) -> None:
    arguments = [part.replace(ADDRESS, server.url) for part in shlex.split(command)]
    arguments = [*arguments, "-w", "\n%{http_code}"]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    body, _, status = done.stdout.rpartition("\n")
    assert status == "200", body
    if "/metrics" not in command and "-o" not in arguments:
        for line in body.strip().splitlines() if "/api/chat" in command else [body]:
            json.loads(line)
