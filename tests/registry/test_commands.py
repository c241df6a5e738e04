"""The model commands as users run them: text, JSON, exit codes, one-line errors, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from tests.registry.weights import model
from tests.support.hub import Hub
from tests.support.waiting import eventually

CONTENT = model(60_000)


class Shell:
    """Runs commands against one root and one hub."""

    def __init__(self, root: Path, hub: Hub) -> None:
        settings = {"MODEL_CACHE_DIR": str(root), "REGISTRY_HF_ENDPOINT": hub.url, "REGISTRY_OLLAMA_ENDPOINT": hub.url}
        kept = {key: value for key, value in os.environ.items() if not key.startswith("BARREL_INFERENCE_")}
        self.environ = {**kept, **{f"BARREL_INFERENCE_{key}": value for key, value in settings.items()}}
        self.root = root

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "barrel_inference.cli.main", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.environ, cwd=self.root.parent, stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def ok(self, *arguments: str) -> str:
        code, out, err = self.run(*arguments)
        assert code == 0, err
        return out


@pytest.fixture
def shell(hub: Hub, tmp_path: Path) -> Shell:
    hub.ollama("library/tiny", [("model", CONTENT), ("system", b"Be kind."), ("license", b"MIT\nand more\nand more")])
    return Shell(tmp_path / "models", hub)


def test_a_day_with_models(shell: Shell) -> None:
    assert "success" in shell.run("pull", "tiny")[2].splitlines()
    assert "tiny:latest" in shell.ok("list") and "NAME" in shell.ok("ls")
    shown = shell.ok("show", "tiny")
    assert all(word in shown for word in ("architecture", "llama", "completion", "Be kind.", "…"))
    assert shell.ok("show", "tiny", "--system") == "Be kind.\n"
    assert "Tensors" in shell.ok("show", "tiny", "-v")
    assert shell.ok("cp", "tiny", "me/copy:v1") == "copied 'tiny' to 'me/copy:v1'\n"
    code, out, err = shell.run("edit", "me/copy:v1", "num_ctx=9000")
    assert (code, out.split()) == (0, ["num_ctx", "9000"])
    assert err.startswith("num_ctx 9000 is capped at 4096: raise registry.max_context_size")
    assert "top_k" in shell.ok("edit", "me/copy:v1", "top_k=5", "stop=a", "stop=b")
    listed = shell.ok("show", "me/copy:v1", "--parameters").split()  # by name, as /api/show lists them
    assert listed == ["num_ctx", "9000", "stop", '"a"', "stop", '"b"', "top_k", "5"]
    modelfile = shell.ok("show", "me/copy:v1", "--modelfile")
    assert "FROM me/copy:v1\n" in modelfile and "PARAMETER stop b\n" in modelfile
    assert "ok" in shell.ok("verify")
    assert shell.ok("rm", "tiny", "me/copy:v1").splitlines() == ["deleted 'tiny'", "deleted 'me/copy:v1'"]
    assert "would be freed" in shell.ok("gc", "--dry-run") and shell.ok("gc").splitlines()[-1].endswith("freed")
    assert shell.ok("list").split() == ["NAME", "ID", "SIZE", "QUANT", "MODIFIED"]


def test_json(shell: Shell) -> None:
    events = [json.loads(line) for line in shell.ok("pull", "tiny", "--json").splitlines()]
    assert events[0] == {"status": "pulling manifest"} and events[-1] == {"status": "success"}
    (listed,) = json.loads(shell.ok("list", "--json"))["models"]
    assert (listed["name"], listed["tag"], listed["architecture"]) == ("tiny", "latest", "llama")
    assert json.loads(shell.ok("show", "tiny", "--json", "-v"))["tensors"][0]["name"] == "weights"
    assert json.loads(shell.ok("cp", "tiny", "two", "--json"))["name"] == "two"
    assert json.loads(shell.ok("edit", "two", "top_k=3", "--json"))["parameters"] == {"top_k": 3}
    assert json.loads(shell.ok("verify", "--json"))[0]["problem"] is None
    assert json.loads(shell.ok("rm", "two", "--json")) == {"deleted": ["two"]}
    assert json.loads(shell.ok("gc", "--json"))["dry_run"] is False


def test_create(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text("FROM tiny\nSYSTEM You are a pirate.\nPARAMETER num_ctx 9999")
    code, _, err = shell.run("create", "pirate")
    assert code == 0 and "num_ctx 9999 is capped at 4096" in err
    assert shell.ok("show", "pirate", "--system") == "You are a pirate.\n"
    (tmp_path / "w.gguf").write_bytes(CONTENT)
    assert shell.run("create", "mine", "--from", "./w.gguf")[0] == 0
    assert (
        shell.run("create", "x", "-f", "nothing")[2]
        == "error: nothing: no such file or directory; name it with -f, or use --from\n"
    )
    (tmp_path / "Modelfile").write_text("FROM tiny\nFOO bar")
    code, _, err = shell.run("create", "x")
    assert code == 2 and err.startswith("error: (line 2): directive 'FOO' is not supported")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("show", "nope"), 3, "model 'nope' not found"),
        (("rm", "nope"), 3, "model 'nope' not found"),
        (("cp", "nope", "x"), 3, "model 'nope' not found"),
        (("pull", "nope"), 5, "file does not exist"),
        (("pull", "../x"), 3, "no such file"),
        (("pull", "a b"), 2, "invalid model name"),
        (("edit", "nope", "top_k"), 2, "not of the form name=value"),
        (("show", "nope", "--system", "--license"), 2, "only one of"),
    ],
)
def test_errors_are_one_line(shell: Shell, arguments: tuple[str, ...], code: int, words: str) -> None:
    got, out, err = shell.run(*arguments)
    last = err.splitlines()[-1]
    assert (got, out) == (code, "") and last.startswith("error: ") and words in last


def test_search(shell: Shell, hub: Hub) -> None:
    hub.serve("/api/models", json.dumps([{"id": "Org/Model-GGUF", "downloads": 12345, "likes": 6}]).encode())
    assert shell.ok("search", "a model").split() == ["NAME", "DOWNLOADS", "LIKES", "hf://Org/Model-GGUF", "12,345", "6"]
    assert "search=a%20model&filter=gguf" in hub.seen[-1].path


async def test_ctrl_c_leaves_a_part_and_says_so(shell: Shell, hub: Hub) -> None:
    content = model(8 << 20, 4)
    hub.ollama("library/big", [("model", content)])
    hub.bytes_per_s = 4e6
    process = shell.start("pull", "big")
    await eventually(lambda: hub.sent_bytes > 1 << 20)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "interrupted: what has arrived is kept, and the same command goes on from there"
    hub.bytes_per_s, sent = None, hub.sent_bytes
    assert shell.run("pull", "big")[0] == 0
    assert hub.sent_bytes - sent < len(content)


def test_bars_on_a_terminal(shell: Shell, hub: Hub) -> None:
    """At a rate that leaves the bar there for as long as it takes to look."""
    content = model(8 << 20, 4)
    hub.ollama("library/big", [("model", content)])
    hub.bytes_per_s = 1e5
    command = ["-m", "barrel_inference.cli.main", "pull", "big"]
    terminal = pexpect.spawn(sys.executable, command, env=shell.environ, dimensions=(24, 120), timeout=120)
    terminal.expect(r"pulling sha256:[0-9a-f]+")
    terminal.expect(r"([1-9]\d*\.\d KiB|[1-9]\.\d) of 8\.0 MiB")  # how far
    terminal.expect(r"[\d.]+ [KM]iB/s")  # how fast
    terminal.expect(r"\d:\d\d:\d\d")  # how long still
    terminal.sendintr()
    terminal.expect("interrupted: what has arrived is kept, and the same command goes on from there")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 130
    hub.bytes_per_s, sent = None, hub.sent_bytes
    assert shell.run("pull", "big")[0] == 0
    assert hub.sent_bytes - sent < len(content)
