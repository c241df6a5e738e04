"""A manifest as an entry: what of it counts when it is loaded, before the configuration and behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from barrel_inference.aio import AsyncRuntime, loading
from barrel_inference.cli import local
from barrel_inference.config import ContextOpts, LoadArguments, ModelOpts, RuntimeConfig, ServerOptions
from barrel_inference.registry import Registry
from barrel_inference.registry.gguf import read
from barrel_inference.registry.manifest import Manifest, describe
from barrel_inference.server.models.catalog import Entry
from barrel_inference.server.models.parameters import translate
from barrel_inference.server.models.pool import Pool
from barrel_inference.server.models.registered import from_manifest
from tests.registry.weights import model
from tests.server.fakes import FakeRuntime, FakeTimers
from tests.support.memory import FakeMemory

PULLED = Manifest(
    name="a",
    tag="latest",
    spec="ollama://a",
    digest=f"sha256:{'0' * 64}",
    blob_path="/blobs/a",
    size_bytes=1,
    context_size=32768,
    loader={"n_gpu_layers": 0, "n_ctx": 4096, "n_batch": 512, "type_k": "q8_0"},
)
ON_GPU = RuntimeConfig(model_opts=ModelOpts(n_gpu_layers=99), context_opts=ContextOpts(n_batch=128))


def with_parameters(**parameters: Any) -> Manifest:
    names = {"num_gpu": "n_gpu_layers", "num_batch": "n_batch"}
    loader = {**PULLED.loader, **{names[name]: value for name, value in parameters.items()}}
    return msgspec.structs.replace(PULLED, parameters=parameters, loader=loader)


async def served(entry: Entry, request: dict[str, Any]) -> LoadArguments:
    """What a server that is configured for a GPU would load."""
    runtime = FakeRuntime()
    memory = FakeMemory(total=1 << 40, available=1 << 40)
    entry = msgspec.structs.replace(entry, path=None)  # nothing is measured
    pool = Pool(runtime, ServerOptions(), memory=memory, timers=FakeTimers(), max_context=4096)
    async with pool.lease(entry, hints=translate(request).load):
        return loading.parse({"backend": "stub", **runtime.loads[0][1]}, ON_GPU)


async def run(entry: Entry, request: dict[str, Any]) -> LoadArguments:
    """The same of the command ``run``."""

    class Runtime:
        config = ON_GPU

        async def load_model(self, **options: Any) -> LoadArguments:
            return loading.parse(options, self.config)

    loaded = await local.load(cast(AsyncRuntime, Runtime()), entry, **translate(request).load)
    return cast(LoadArguments, loaded)


@pytest.mark.parametrize("load", [served, run])
@pytest.mark.parametrize(
    ("manifest", "request_options", "n_gpu_layers", "n_batch"),
    [
        (PULLED, {}, 99, 128),
        (with_parameters(num_gpu=7), {}, 7, 128),
        (with_parameters(num_gpu=0, num_batch=64), {}, 0, 64),
        (with_parameters(num_gpu=7, num_batch=64), {"num_gpu": 3, "num_batch": 32}, 3, 32),
    ],
)
async def test_request_then_parameters_then_configuration_then_what_every_manifest_says(
    load: Any, manifest: Manifest, request_options: dict[str, Any], n_gpu_layers: int, n_batch: int
) -> None:
    arguments = await load(from_manifest(manifest), request_options)
    assert arguments.model_opts.n_gpu_layers == n_gpu_layers
    assert arguments.context_opts.n_batch == n_batch


async def test_the_same_for_load_model_by_name(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "models")
    file = tmp_path / "m.gguf"
    file.write_bytes(model())
    async for _ in registry.pull(str(file), name="m"):
        pass
    assert registry.resolve("m").loader["n_gpu_layers"] == 0
    arguments = loading.parse({"model_path": "m"}, ON_GPU)
    path = loading.locate("m", registry)
    assert path.is_file()
    assert arguments.model_opts.n_gpu_layers == 99


def test_the_manifest_keeps_its_format(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(model())
    loader = describe(read(file), max_context=4096)["loader"]
    assert loader.keys() == {"n_gpu_layers", "n_ctx", "n_batch", "quant_type", "quant_bits"}


def test_the_cap_of_the_day_it_was_pulled_does_not_hold_for_ever() -> None:
    """Or ``serve --ctx`` would do nothing for it."""
    entry = from_manifest(PULLED)
    assert entry.load["context_opts"] == {"type_k": "q8_0"}
    assert entry.context_size == 32768
