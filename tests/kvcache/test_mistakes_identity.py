"""Mistakes others made with keys and identity: what must never share a block, and what must."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from barrel_inference.config import LoadOptions
from barrel_inference.engine.checkpoints.opening import learn_layout, name
from barrel_inference.kvcache.namespace import Namespace
from tests.kvcache.fake_backend import FakeBackend
from tests.kvcache.harness import Runner, open_on, options, same, spec

PROMPT = list(range(10, 510))
ROLE_SYSTEM, ROLE_USER = 1, 2


def runner(path: Path, backend: FakeBackend | None = None, **more: object) -> Runner:
    backend = backend or FakeBackend()
    return Runner(backend, open_on(backend, options(spec(path), **more)))


CHILD = """
import os, signal, sys
from pathlib import Path
from tests.kvcache.test_mistakes_identity import PROMPT, runner
one = runner(Path(sys.argv[1]))
one.run(PROMPT)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_mistake_01_index_lost_on_restart(tmp_path: Path) -> None:
    child = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], cwd=Path.cwd(), env={**os.environ})
    assert child.returncode == -signal.SIGKILL
    assert runner(tmp_path).run(PROMPT).restored >= len(PROMPT) - 64


def test_mistake_03_role_marker_collision(tmp_path: Path) -> None:
    """Equal but for control tokens, which have no text."""
    one = runner(tmp_path)
    as_user = [ROLE_USER, *PROMPT]
    as_system = [ROLE_SYSTEM, *PROMPT]
    one.run(as_user)
    assert one.run(as_system).restored == 0
    inside = [*PROMPT[:100], ROLE_USER, *PROMPT[100:]]
    one.run(PROMPT)
    assert one.run(inside).restored == 100


def changed(field: str, old: object) -> object:
    if isinstance(old, bool):
        return not old
    if isinstance(old, (int, float)):
        return old + 1
    return (("a" * 64, 0.5),) if field == "lora" else f"{old}x"


@pytest.mark.parametrize("field", list(Namespace.__struct_fields__))
def test_mistake_04_a_parameter_not_in_the_key(field: str) -> None:
    backend = FakeBackend()
    given = name(LoadOptions(id="m", fingerprint="f" * 64), backend.info, learn_layout(backend))
    other = msgspec.structs.replace(given, **{field: changed(field, getattr(given, field))})
    assert other.digest() != given.digest()


@pytest.mark.parametrize(
    "facts",
    [
        {"rope": "freq_base=1e6"},
        {"type_k": "q8_0"},
        {"type_v": "q8_0"},
        {"build": "fake-2"},
        {"architecture": "other"},
        {"flash_attn": False},
        {"quant_type": "Q4_0"},
    ],
)
def test_mistake_04_another_context_finds_nothing(tmp_path: Path, facts: dict[str, object]) -> None:
    runner(tmp_path).run(PROMPT)
    assert runner(tmp_path, FakeBackend().change(**facts)).run(PROMPT).restored == 0
    assert runner(tmp_path).run(PROMPT).restored == len(PROMPT) - 1


@pytest.mark.parametrize(
    "more", [{"fingerprint": "0" * 64}, {"lora": (("a.gguf", 1.0, "b" * 64),)}, {"ctx_params_hash": "c" * 64}]
)
def test_mistake_04_another_model_finds_nothing(tmp_path: Path, more: dict[str, object]) -> None:
    runner(tmp_path).run(PROMPT)
    assert runner(tmp_path, **more).run(PROMPT).restored == 0


def test_a_larger_context_keeps_the_cache_warm(tmp_path: Path) -> None:
    runner(tmp_path).run(PROMPT)
    assert runner(tmp_path, FakeBackend(n_ctx=8192)).run(PROMPT).restored == len(PROMPT) - 1


def test_the_order_of_lora_adapters_does_not_matter() -> None:
    backend = FakeBackend()
    layout = learn_layout(backend)
    adapters = (("a.gguf", 1.0, "a" * 64), ("b.gguf", 0.5, "b" * 64))
    names = {name(LoadOptions(id="m", lora=lora), backend.info, layout).digest() for lora in (adapters, adapters[::-1])}
    assert len(names) == 1


def test_another_scale_of_an_adapter_is_another_model() -> None:
    backend = FakeBackend()
    layout = learn_layout(backend)
    loads = [LoadOptions(id="m", lora=(("a.gguf", scale, "a" * 64),)) for scale in (1.0, 0.5)]
    assert len({name(load, backend.info, layout).digest() for load in loads}) == 2


def test_mistake_14_tools_not_in_the_key(tmp_path: Path) -> None:
    """The prompt is what is keyed, tools included: a changed description ends the prefix there."""
    one = runner(tmp_path)
    tools, chat = list(range(600, 900)), list(range(10, 200))
    one.run([*tools, *chat])
    other = [*tools[:150], 999, *tools[151:]]
    warm = one.run([*other, *chat])
    assert warm.restored == 150
    backend = FakeBackend()
    assert same(warm, Runner(backend, open_on(backend, options())).run([*other, *chat]))


def test_mistake_17_tenants_see_each_other(tmp_path: Path) -> None:
    one = runner(tmp_path)
    one.run(PROMPT, salt="one")
    assert one.run(PROMPT, salt="two").restored == 0
    assert one.run(PROMPT).restored == 0
    assert one.run(PROMPT, salt="one").restored == len(PROMPT) - 1
    assert one.checkpoints.lookup(PROMPT, salt="three").cached_tokens == 0


def test_ns_json_says_what_the_blocks_are(tmp_path: Path) -> None:
    one = runner(tmp_path)
    about = msgspec.json.decode((tmp_path / one.checkpoints.namespace[:32] / "ns.json").read_bytes())
    assert about["architecture"] == "fake"
    assert about["block_tokens"] == 64
