"""The conversation: its commands on a server of lists, and all of it in a real terminal with a private server."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import psutil
import pytest

from barrel_inference.cli.repl import loop, message
from barrel_inference.cli.session import HELP, Session, parameter
from barrel_inference.cli.wishes import Wishes
from barrel_inference.errors import BarrelError, ConfigError
from tests.server.harness import SLOW, STUB

ANSWER: list[dict[str, Any]] = [
    {"message": {"content": "Hel"}},
    {"message": {"content": "lo"}},
    {"message": {"content": ""}, "done": True, "eval_count": 2, "eval_duration": 10**9, "prompt_eval_count": 5},
]


class FakeServer:
    def __init__(self, pieces: list[dict[str, Any]] | None = None) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.pieces = ANSWER if pieces is None else pieces
        self.closed = 0

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        self.asked.append((path, body))
        if body and body.get("model") == "slow":
            raise KeyboardInterrupt
        if path == "/api/show":
            return {"details": {"family": "llama", "families": []}, "capabilities": ["completion"], "template": "T"}
        return {"models": [{"name": "a:latest", "size": 2048}]}

    def lines(self, path: str, body: Any) -> Iterator[dict[str, Any]]:
        self.asked.append((path, json.loads(json.dumps(body))))
        try:
            for piece in self.pieces:
                if "interrupt" in piece:
                    raise KeyboardInterrupt
                if "error" in piece:
                    raise BarrelError(piece["error"])
                yield piece
        finally:
            self.closed += 1


def talk(server: FakeServer, *lines: str) -> tuple[str, Session]:
    """What is written when these lines are typed."""
    typed = iter(lines)
    written: list[str] = []
    session = Session(server, "m")

    def read(prompt: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    loop(session, read, written.append)
    return "".join(written), session


def test_a_command_that_is_interrupted_ends_no_conversation() -> None:
    text, session = talk(FakeServer(), "Hi", "/load slow", "And?", "/bye")
    assert text.count("Hello") == 2
    assert (session.model, len(session.messages)) == ("m", 4)


def test_a_conversation_grows() -> None:
    server = FakeServer()
    text, session = talk(server, "Hi", "And?", "/bye")
    assert text.count("Hello") == 2
    assert [each["role"] for each in session.messages] == ["user", "assistant"] * 2
    assert server.asked[1][1]["messages"] == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "And?"},
    ]


def test_settings_go_with_the_next_request() -> None:
    server = FakeServer()
    talk(
        server,
        "/set parameter temperature 0.5",
        "/set parameter stop a b",
        "/set system Be brief.",
        "/set think low",
        "x",
    )
    request = server.asked[0][1]
    assert request["options"] == {"temperature": 0.5, "stop": ["a", "b"]}
    assert request["messages"][0] == {"role": "system", "content": "Be brief."}
    assert request["think"] == "low"


def test_without_the_cache_every_request_says_so() -> None:
    server = FakeServer()
    session = Session(server, "m", cache=False)
    list(session.answer("x"))
    list(Session(server, "m").answer("x"))
    assert [body.get("cache") for _, body in server.asked] == ["off", None]


def test_wishes_of_the_command_line_hold_until_others_are_set() -> None:
    server = FakeServer()
    session = Session(server, "m", wishes=Wishes("json", "low", 60.0))
    list(session.answer("Hi"))
    session.command("/set nothink")
    session.command("/set noformat")
    list(session.answer("And?"))
    asked = [{name: body[name] for name in ("format", "think", "keep_alive")} for _, body in server.asked]
    assert asked == [
        {"format": "json", "think": "low", "keep_alive": 60.0},
        {"format": None, "think": False, "keep_alive": 60.0},
    ]


def test_what_counts_at_loading_is_said_at_loading() -> None:
    server = FakeServer()
    talk(server, "/set parameter num_gpu 7", "/load other")
    assert server.asked == [("/api/generate", {"model": "other", "prompt": "", "options": {"num_gpu": 7}})]


def test_a_parameter_without_a_value_is_the_model_s_again() -> None:
    server = FakeServer()
    text, _ = talk(server, "/set parameter stop END", "/set parameter seed 1", "/set parameter stop", "x")
    assert server.asked[0][1]["options"] == {"seed": 1}
    assert "stop is as the model has it again" in text


def test_format_and_back() -> None:
    server = FakeServer()
    talk(server, "/set format json", "x", "/set noformat", "y", '/set format {"type": "object"}', "z")
    assert [body["format"] for _, body in server.asked] == ["json", None, {"type": "object"}]


def test_several_lines() -> None:
    server = FakeServer()
    talk(server, '"""one', "two", 'three"""')
    assert server.asked[0][1]["messages"][0]["content"] == "one\ntwo\nthree"
    assert message(lambda prompt: '"""one line"""') == "one line"


def test_what_was_pasted_keeps_its_lines() -> None:
    server = FakeServer()
    talk(server, "one\n  two\n", "/bye")
    assert server.asked[0][1]["messages"][0]["content"] == "one\n  two"


def test_an_interrupted_answer_is_remembered_as_far_as_it_came() -> None:
    server = FakeServer([ANSWER[0], {"interrupt": True}])
    text, session = talk(server, "Hi")
    assert server.closed == 1
    assert session.messages[-1] == {"role": "assistant", "content": "Hel"}
    assert "Hel" in text


def test_a_failed_answer_does_not_end_the_conversation() -> None:
    server = FakeServer([{"error": "no memory"}])
    text, session = talk(server, "Hi", "/clear")
    assert "error: no memory" in text
    assert session.messages == []


def test_verbose_tells_the_rate() -> None:
    text, _ = talk(FakeServer(), "/set verbose", "Hi")
    assert "5 prompt tokens (0 known), 2 tokens at 2.0/s" in text


def test_show_list_load_save() -> None:
    server = FakeServer()
    text, session = talk(server, "/show info", "/show template", "/list", "Hi", "/save mine", "/load other")
    assert "family               llama" in text
    assert "\nT\n" in text
    assert "a:latest   2.0 KiB" in text
    saved = next(body for path, body in server.asked if path == "/api/create")
    assert (saved["model"], saved["from"], len(saved["messages"])) == ("mine", "m", 2)
    assert (session.model, session.messages) == ("other", [])


@pytest.mark.parametrize(
    "line", ["/nothing", "/set", "/set nonsense", "/load", "/save", "/show nothing", "/set format {"]
)
def test_wrong_commands_say_what_is_right(line: str) -> None:
    with pytest.raises(ConfigError):
        Session(FakeServer(), "m").command(line)
    assert "error: " in talk(FakeServer(), line)[0]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("seed", "1", 1),
        ("temperature", "0.5", 0.5),
        ("use_mmap", "true", True),
        ("regex", "abc", "abc"),
        ("regex", '"x"', '"x"'),
        ("regex", "[1]", "[1]"),
        ("stop", "a b", ["a", "b"]),
        ("stop", 'END "two words" \'don"t\'', ["END", "two words", 'don"t']),
        ("stop", "<|im_end|> # \\n", ["<|im_end|>", "#", "\\n"]),
    ],
)
def test_parameters(name: str, text: str, value: Any) -> None:
    assert parameter(name, text) == {name: value}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/set parameter temprature 0.1", "did you mean 'temperature'?"),
        ("/set parameter temperature warm", "must be of type float32"),
        ("/set parameter stop 'never closed", "a quotation mark is not closed"),
        ("/set parameter stop", "stop is not set"),
    ],
)
def test_a_parameter_that_the_server_would_not_take_is_refused_at_once(line: str, said: str) -> None:
    text, session = talk(FakeServer(), line)
    assert said in text
    assert session.options == {}


def environment(root: Path, term: str) -> dict[str, str]:
    """Of a terminal whose server has stub models."""
    environ = {
        **os.environ,
        "BARREL_INFERENCE_SERVER_MODELS": json.dumps({"stub": STUB, "slow": SLOW}),
        "BARREL_INFERENCE_SERVER_HOST": "0.0.0.0",  # of the one that others ask; this one is for the conversation alone
        "BARREL_INFERENCE_SERVER_PORT": "9",
        "BARREL_INFERENCE_MODEL_CACHE_DIR": str(root / "models"),
        "BARREL_INFERENCE_CACHE_DIR": str(root / "cache"),
        "XDG_CACHE_HOME": str(root / "xdg"),
        "XDG_STATE_HOME": str(root / "state"),
        "TERM": term,
    }
    environ.pop("BARREL_INFERENCE_HOST", None)
    return environ


def test_in_a_terminal(tmp_path: Path) -> None:
    """A private server is started and is gone afterwards; Ctrl-C stops an answer; the history lasts."""
    environ = environment(tmp_path, "dumb")
    command = ["-m", "barrel_inference.cli.main", "run", "stub", "--max-tokens", "5", "--verbose", "--no-cache"]
    command += ["--gpu-layers", "0"]
    terminal = pexpect.spawn(sys.executable, command, env=environ, encoding="utf-8", timeout=60)
    try:
        terminal.expect(">>> ")
        for _ in range(2):  # nothing is known of it the second time
            terminal.sendline("Hello " * 30)
            terminal.expect(r"\(0 known\), 5 tokens")
            terminal.expect(">>> ")
            terminal.sendline("/clear")
            terminal.expect("a new conversation")
            terminal.expect(">>> ")
        terminal.sendline("/show parameters")
        terminal.expect(r"num_gpu +0")
        terminal.expect(">>> ")
        terminal.sendline("/load slow")
        terminal.expect("now with slow")
        terminal.sendline("/set parameter num_predict 400")
        terminal.expect("is 400 now")
        terminal.expect(">>> ")
        terminal.sendline("A long one")
        terminal.expect("A long one\r\n")
        terminal.expect(r"\w")
        terminal.sendintr()
        terminal.expect(">>> ")
        terminal.sendline("/bye")
        terminal.expect(pexpect.EOF)
    finally:
        terminal.close(force=True)
    assert terminal.exitstatus == 0
    assert "A long one" in (tmp_path / "state" / "barrel_inference" / "history").read_text()


def test_a_paste_of_several_lines_is_one_message(tmp_path: Path) -> None:
    command = ["-m", "barrel_inference.cli.main", "run", "stub", "--max-tokens", "5"]
    environ = environment(tmp_path, "xterm")
    terminal = pexpect.spawn(sys.executable, command, env=environ, encoding="utf-8", timeout=60)
    terminal.logfile_read = seen = io.StringIO()
    try:
        terminal.expect(">>> ")
        terminal.sendline("/set verbose")
        terminal.expect("done")
        terminal.expect_exact("\x1b[?2004h")  # asked for; otherwise a terminal sends a paste as if it was typed
        terminal.expect(">>> ")
        terminal.send("\x1b[200~first line\rsecond line\r\x1b[201~")
        terminal.expect("second line")
        terminal.send("\r")
        terminal.expect("5 tokens")
        terminal.expect(">>> ")
        terminal.sendline("/bye")
        terminal.expect(pexpect.EOF)
    finally:
        terminal.close(force=True)
    assert seen.getvalue().count("5 tokens") == 1
    assert "first line\nsecond line\n" in (tmp_path / "state" / "barrel_inference" / "history").read_text()


@pytest.mark.parametrize("how", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_the_private_server_ends_with_the_conversation(tmp_path: Path, how: signal.Signals) -> None:
    """Also when the terminal is closed."""
    command = ["-m", "barrel_inference.cli.main", "run", "stub"]
    terminal = pexpect.spawn(sys.executable, command, env=environment(tmp_path, "dumb"), encoding="utf-8", timeout=60)
    try:
        terminal.expect(">>> ")
        started = psutil.Process(terminal.pid).children(recursive=True)
        assert len(started) >= 1
        os.kill(terminal.pid, how)
        _, left = psutil.wait_procs(started, timeout=60)
        assert left == []
    finally:
        terminal.close(force=True)


def test_the_help_fits_on_eighty_columns() -> None:
    assert max(map(len, HELP.splitlines())) <= 80
