"""gpt-oss's format as OpenAI's own library reads it, beside our parser. The library fetches its vocabulary at first
use, so that a server which may have no network cannot stand on it; here the copy that LiteLLM carries will do."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from barrel_inference.chat.tools.harmony import HarmonyParser
from tests.chat.pieces import fed

pytestmark = pytest.mark.skipif(
    not (importlib.util.find_spec("openai_harmony") and importlib.util.find_spec("litellm")),
    reason="openai-harmony and litellm (the frameworks extra) are not installed",
)

VOCABULARY = "litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790"
LIBRARY = """
import json, sys
from openai_harmony import HarmonyError, Role, load_harmony_encoding

encoding = load_harmony_encoding("HarmonyGptOss")


def read(text):
    tokens = encoding.encode(text, allowed_special="all")
    try:
        messages = encoding.parse_messages_from_completion_tokens(tokens, Role.ASSISTANT)
    except HarmonyError:
        return None
    return [(each.channel, each.recipient, "".join(part.text for part in each.content)) for each in messages]


print(json.dumps([read(text) for text in json.load(sys.stdin)]))
"""
CONTENTS = ["Hello.", "", "a\n\nb  c", "{x} <b> 木 é 😀", "to=functions.f said the user", "<|end is near"]
ARGUMENTS = ["{}", '{"zone": "CET"}', '{"city": "a \\"b\\" {", "days": [1, {"x": null}]}', '{"city": "木\\n😀"}']


def answers(count: int) -> Iterator[str]:
    """Rows of messages in all the ways in which a model writes their headers."""
    chooser = random.Random(7)
    for _ in range(count):
        parts = [_message(chooser) for _ in range(chooser.randint(1, 4))]
        yield "<|start|>assistant".join(parts)


def _message(chooser: random.Random) -> str:
    if chooser.random() < 0.4:
        constrain = chooser.choice(["", " json", " <|constrain|>json", "<|constrain|>json"])
        recipient = f" to=functions.{chooser.choice(['get_time', 'get_weather', 'a.b-c'])}"
        channel = "<|channel|>commentary"
        header = chooser.choice([f"{channel}{recipient}{constrain}", f"{recipient}{channel}{constrain}"])
        return f"{header}<|message|>{chooser.choice(ARGUMENTS)}<|call|>"
    channel = chooser.choice(["analysis", "commentary", "final"])
    end = "<|return|>" if channel == "final" else "<|end|>"
    return f"<|channel|>{channel}<|message|>{chooser.choice(CONTENTS)}{end}"


def as_library(tmp_path: Path, texts: Sequence[str]) -> list[Any]:
    package = importlib.util.find_spec("litellm")
    assert package is not None and package.submodule_search_locations
    shutil.copy(Path(package.submodule_search_locations[0]) / VOCABULARY, tmp_path / "o200k_base.tiktoken")
    environ = {**os.environ, "TIKTOKEN_ENCODINGS_BASE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LIBRARY],
        input=json.dumps(texts),
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def events(messages: Sequence[tuple[str, str | None, str]]) -> list[tuple[str, Any]]:
    """In the form of our tests: thoughts, texts and calls."""
    found: list[tuple[str, Any]] = []
    for channel, recipient, text in messages:
        if recipient:
            found.append(("call", (recipient.removeprefix("functions."), json.loads(text))))
        elif text:
            found.append(("thought" if channel == "analysis" else "text", text))
    return found


def joined(found: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Neighbours of a kind as one."""
    result: list[tuple[str, Any]] = []
    for kind, value in found:
        if result and result[-1][0] == kind != "call":
            result[-1] = (kind, result[-1][1] + value)
        else:
            result.append((kind, value))
    return result


def test_what_the_library_reads_is_what_we_read(tmp_path: Path) -> None:
    texts = list(answers(300))
    compared = 0
    for text, messages in zip(texts, as_library(tmp_path, texts), strict=True):
        if messages is None:
            continue  # refused; we read all there is
        compared += 1
        for sure in (False, True):
            for cuts in ((), range(1, len(text))):
                assert fed(HarmonyParser(sure_calls=sure), text, cuts) == joined(events(messages)), text
    assert compared > 250, "the library refuses more than it reads: nothing was compared"
