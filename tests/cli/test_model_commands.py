"""run, cache and bench on a real model, each command a process of its own with a private cache directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from barrel_inference.cli.bench import Figures, text
from barrel_inference.cli.cache import seconds
from barrel_inference.cli.run import summary
from barrel_inference.errors import ConfigError
from barrel_inference.types import CacheReport, Completion, Timings, Usage
from tests.support.models import smollm2

TIMEOUT_S = 240
DOCUMENT = "The barrel stood by the mill, and the miller counted what was in it. " * 12
Done = subprocess.CompletedProcess[str]


class Commands:
    """Runs commands on one cache directory."""

    def __init__(self, home: Path) -> None:
        self._environ = {**os.environ, "XDG_CACHE_HOME": str(home), "HOME": str(home)}
        del self._environ["BARREL_INFERENCE_CONFIG"]

    def __call__(self, *arguments: str, stdin: str = "", **environ: str) -> Done:
        command = [sys.executable, "-m", "barrel_inference.cli.main", *arguments]
        return subprocess.run(
            command,
            input=stdin,
            env=self._environ | environ,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def json(self, *arguments: str, stdin: str = "") -> Any:
        done = self(*arguments, "--json", stdin=stdin)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    return Commands(tmp_path_factory.mktemp("home"))


@pytest.mark.model
@pytest.mark.slow
def test_what_one_run_has_read_the_next_one_finds(commands: Commands) -> None:
    model, few = str(smollm2()), ("--max-tokens", "4", "--temperature", "0")
    first = commands.json("run", model, "Where was it?", *few, stdin=DOCUMENT)
    assert first["cache"]["kind"] == "cold"

    second = commands("run", model, "Where was it?", *few, "-v", stdin=DOCUMENT)
    assert second.stdout.strip() == first["text"].strip()
    assert "restored from store" in second.stderr

    looked = commands.json("cache", "lookup", model, stdin=f"{DOCUMENT.strip()}\n\nWhere was it?")
    assert looked["by_tier"]["store"] >= 128

    pinned = commands.json("cache", "pin", model, stdin=f"{DOCUMENT.strip()}\n\nWhere was it?")
    assert pinned["pinned_tokens"] >= 128

    assert commands("cache", "verify").returncode == 0
    assert "objects" in commands("cache", "stats").stdout
    assert commands.json("cache", "clear")["objects"] > 0
    assert commands.json("cache", "stats")["tiers"][0]["objects"] == 0


@pytest.mark.model
def test_raw_text_is_continued_and_not_cached_when_told_so(commands: Commands) -> None:
    done = commands.json("run", str(smollm2()), "Once upon a", "--raw", "--no-cache", "--max-tokens", "2")
    assert len(done["tokens"]) == 2
    assert len(done["prompt_tokens"]) <= 4  # no template around it


@pytest.mark.model
def test_the_configured_context_is_the_one_of_run(commands: Commands) -> None:
    """Under what the flag says, and under what the server is told."""
    ask, small = (
        ("run", str(smollm2()), "Why? " * 60, "--max-tokens", "1"),
        {"BARREL_INFERENCE_CONTEXT_OPTS_N_CTX": "64"},
    )
    refused = commands(*ask, **small)
    assert (refused.returncode, "64" in refused.stderr) == (4, True), refused.stderr
    assert commands(*ask, "--ctx", "512", **small).returncode == 0
    assert commands(*ask, **small, BARREL_INFERENCE_SERVER_CONTEXT_SIZE="512").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("run", "./nowhere.gguf", "hi"), 3, "there is no file ./nowhere.gguf"),
        (("run", "./", "hi"), 3, "./ is a directory: name the GGUF file in it"),
        (("run", __file__, "hi"), 3, "not a GGUF file"),
        (("run", "x.gguf"), 2, "there is no prompt"),
        (("cache", "lookup", "x.gguf"), 2, "there is no prompt"),
        (("config", "check", "nowhere.toml"), 2, "nowhere.toml: no such file or directory"),
        (("cache", "clear", "--older-than", "soon"), 2, "is not a time"),
        (("cache", "clear", "--tier", "nosuch"), 2, "'nosuch' is not started"),
    ],
)
def test_each_mistake_is_one_line(commands: Commands, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = commands(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("error: ") and said in done.stderr
    assert done.stderr.count("\n") == 1


def test_that_nothing_is_configured_is_said(commands: Commands) -> None:
    assert commands("config", "show").stdout == "# there is no configuration file; the defaults are in force\n"


def test_that_nothing_is_installed_is_said_beside_the_table(commands: Commands) -> None:
    done = commands("list")
    assert done.stdout.split() == ["NAME", "ID", "SIZE", "QUANT", "MODIFIED"]
    assert "barrel-inference pull" in done.stderr
    assert "begins with 'llama'" in commands("list", "llama").stderr


@pytest.mark.parametrize(("text", "expected"), [("90m", 5400), ("1.5h", 5400), ("30d", 2_592_000), ("2W", 1_209_600)])
def test_times_are_read(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "5", "m", "-1h", "1 month"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write 90m"):
        seconds(text)


def test_the_summary_tells_what_was_known() -> None:
    done = Completion(
        text="",
        tokens=(1, 2, 3),
        finish_reason="stop",
        cache=CacheReport(kind="partial", restored_tokens=64, prefilled_tokens=6, tier="store"),
        usage=Usage(prompt_tokens=70, completion_tokens=3),
        timings=Timings(decode_s=0.5, first_token_s=0.25),
    )
    assert summary(done) == (
        "70 prompt tokens (64 restored from store, 6 read), first token after 0.250 s, 3 tokens at 4.0/s"
    )


def test_figures_for_people() -> None:
    figures = Figures(
        model="m",
        prompt_tokens=1024,
        read_tokens_s=256.0,
        read_s=4.0,
        again_s=0.02,
        restored_tokens=1023,
        write_tokens_s={1: 100.4, 4: 180.0},
    )
    assert text(figures).splitlines() == [
        "reads     256 tokens/s  (1,024 in 4.00 s)",
        "again     0.020 s  (1,023 tokens restored, 200 × sooner)",
        "writes    100 tokens/s  (1 side by side)",
        "writes    180 tokens/s  (4 side by side)",
    ]
