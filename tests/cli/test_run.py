"""Who answers ``run``: the server that runs on this machine and knows the model, or a runtime of the command's own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from barrel_inference.cli.private import check_loading, running, server
from barrel_inference.cli.report import EXIT_REFUSED, EXIT_USAGE
from barrel_inference.cli.run import told
from barrel_inference.errors import InvalidModelError, UnsupportedError
from tests.server.harness import STUB, RunningServer

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]
FEW = ("--max-tokens", "5", "--seed", "3")
TEMPLATE = "{{ .System }} is asked, {{ .Prompt }}, and says:"
TEMPLATED = STUB | {"template": TEMPLATE, "system": "Ann"}
BOTH = {"stub": STUB, "templated": TEMPLATED}  # known to the server and, by the configuration, without it


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The server that runs where the configuration says."""
    with RunningServer(tmp_path_factory.mktemp("server"), models={**BOTH, "theirs": STUB}) as running:
        yield running


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("BARREL_", "OLLAMA_"))}
    own |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    return own | {"BARREL_INFERENCE_SERVER_MODELS": json.dumps(BOTH)}


@pytest.fixture
def run(environ: dict[str, str]) -> Run:
    def command(*arguments: str, port: int = 9, stdin: str = "") -> Done:
        return subprocess.run(
            [sys.executable, "-m", "barrel_inference.cli.main", "run", *arguments],
            input=stdin,
            env=environ | {"BARREL_INFERENCE_SERVER_PORT": str(port)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return command


def port_of(server: RunningServer) -> int:
    return int(server.url.rpartition(":")[2])


def loaded(server: RunningServer) -> set[str]:
    return {model["name"] for model in server.request("GET", "/api/ps")[1]["models"]}


def test_the_server_that_runs_answers_as_a_process_of_its_own_would(run: Run, here: RunningServer) -> None:
    there = run("stub", *FEW, "--json", port=port_of(here), stdin="Hello")
    assert loaded(here) == {"stub:latest"}
    alone = run("stub", *FEW, "--json", stdin="Hello")
    assert (there.returncode, alone.returncode) == (0, 0), there.stderr + alone.stderr
    answers = [json.loads(done.stdout) for done in (there, alone)]
    assert answers[0].keys() == answers[1].keys()
    for name in ("text", "finish_reason"):
        assert answers[0][name] == answers[1][name]
    assert [answer["usage"]["prompt_tokens"] for answer in answers] == [answers[0]["usage"]["prompt_tokens"]] * 2
    streamed = run("stub", "Hello", *FEW, "--verbose", port=port_of(here))
    assert streamed.stdout.strip() == answers[0]["text"].strip()
    assert "5 tokens at" in streamed.stderr


def test_a_models_own_template_counts_whoever_answers(run: Run, here: RunningServer) -> None:
    answers = [json.loads(run("templated", "Hello", *FEW, "--json", port=port).stdout) for port in (port_of(here), 9)]
    answers.append(json.loads(run("stub", "Ann is asked, Hello, and says:", "--raw", *FEW, "--json").stdout))
    assert len({answer["usage"]["prompt_tokens"] for answer in answers}) == 1
    assert len({answer["text"] for answer in answers}) == 1


def test_a_prompt_that_is_too_long_is_an_error_whoever_answers(run: Run, here: RunningServer) -> None:
    for port in (port_of(here), 9):
        for more in ((), ("--raw",)):
            done = run("stub", "word " * 2000, "--ctx", "128", *more, port=port)
            assert (done.returncode, done.stdout.strip()) == (EXIT_REFUSED, ""), done.stderr
            assert done.stderr.splitlines()[-1].startswith("error: ")


def test_a_prompt_needs_no_quotes(run: Run) -> None:
    quoted, bare = run("stub", "--raw", *FEW, "Once upon"), run("stub", "Once", "--raw", *FEW, "upon")
    assert quoted.stdout == bare.stdout != ""
    assert bare.returncode == 0, bare.stderr


@pytest.mark.parametrize(("option", "value"), [("--temperature", "-1"), ("--max-tokens", "-5"), ("--ctx", "0")])
def test_a_wrong_value_is_the_same_mistake_whoever_answers(
    run: Run, here: RunningServer, option: str, value: str
) -> None:
    codes = [run("stub", "Hi", option, value, port=port).returncode for port in (port_of(here), 9)]
    assert codes == [EXIT_USAGE, EXIT_USAGE]


def test_a_context_that_the_server_limits_is_said(run: Run, here: RunningServer) -> None:
    done = run("stub", "Hi", *FEW, "--ctx", "16000000", port=port_of(here))
    assert done.returncode == 0 and done.stderr.startswith("num_ctx is limited to "), done.stderr


def test_form_thoughts_and_keepalive_are_the_same_wish_whoever_answers(
    run: Run, here: RunningServer, tmp_path: Path
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["yes", "no"]}')
    ports = (port_of(here), 9)
    asked = ("stub", "Hello", *FEW[2:], "--format", str(schema), "--no-think", "--keepalive", "1h")
    answers = [run(*asked, port=port) for port in ports]
    assert {done.stdout.strip() for done in answers} <= {'"yes"', '"no"'}, answers
    assert answers[0].stdout == answers[1].stdout
    until = datetime.fromisoformat(here.request("GET", "/api/ps")[1]["models"][0]["until"])
    assert until - datetime.now(UTC) > timedelta(minutes=50)
    refused = [run("stub", "--think", "Hello", port=port) for port in ports]
    assert [(done.returncode, "think" in done.stderr) for done in refused] == [(EXIT_REFUSED, True)] * 2
    assert [run("stub", "Hi", "--keepalive", "soon", port=port).returncode for port in ports] == [EXIT_USAGE] * 2


def test_layers_on_the_gpu_are_refused_where_the_model_is_loaded_already(run: Run, here: RunningServer) -> None:
    first = run("theirs", "Hi", *FEW, "--gpu-layers", "0", port=port_of(here))
    assert first.returncode == 0, first.stderr
    second = run("theirs", "Hi", *FEW, "--gpu-layers", "0", port=port_of(here))
    assert second.returncode == EXIT_REFUSED
    assert "barrel-inference stop theirs first" in second.stderr and second.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "says", [None, b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<html>"], ids=str
)
def test_another_program_at_the_address_is_let_be(run: Run, says: bytes | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if says is not None:

            def answer() -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(says)

            threading.Thread(target=answer, daemon=True).start()
        done = run("stub", "Hello", *FEW, port=port)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_names_it_does_not_know_and_files_are_no_matter_of_the_server(
    here: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BARREL_INFERENCE_HOST", raising=False)
    monkeypatch.setenv("BARREL_INFERENCE_SERVER_PORT", str(port_of(here)))
    file = tmp_path / "tiny.gguf"
    file.touch()
    found = running("stub")
    assert found is not None and found[1] == "stub"
    assert running("nobody") is None
    assert running(str(file)) is None
    with pytest.raises(InvalidModelError, match="there is no file"), server(str(tmp_path / "missing.gguf")):
        pass


class Loaded:
    """A server that has one model loaded."""

    url = "http://there"

    def has_loaded(self, model: str) -> bool:
        return model == "a"


def test_what_counts_at_loading_only() -> None:
    there: Any = Loaded()
    check_loading(there, "a", {"seed": 1})
    check_loading(there, "b", {"num_gpu": 1})
    with pytest.raises(UnsupportedError, match="stop a first"):
        check_loading(there, "a", {"num_gpu": 1})


def test_an_answer_of_a_server_in_the_words_of_a_runtime() -> None:
    final = {"done_reason": "length", "prompt_eval_count": 70, "prompt_eval_cached_count": 64, "eval_count": 3}
    times = {"total_duration": 10**9, "load_duration": 25 * 10**7, "eval_duration": 5 * 10**8}
    done = told("abc", final | times | {"cache": {"kind": "partial", "restored_tokens": 64, "tier": "store"}})
    assert (done.text, done.finish_reason, done.usage.total_tokens) == ("abc", "length", 73)
    assert (done.cache.restored_tokens, done.cache.prefilled_tokens) == (64, 6)
    assert (done.timings.first_token_s, done.timings.decode_s) == (0.25, 0.5)
