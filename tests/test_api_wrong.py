"""Ids, paths and digests that are none: one typed error each, and nothing happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import barrel_inference as bi
from barrel_inference.errors import ConfigError, InvalidRequestError, NotLoadedError, TierUnknownError
from tests.support.gguf_file import write_gguf


@pytest.fixture(scope="module")
def runtime() -> Iterator[bi.Runtime]:
    with bi.Runtime() as one:
        yield one


@pytest.fixture(scope="module")
def model(runtime: bi.Runtime) -> bi.Model:
    return runtime.load_model("stub", backend="stub")


@pytest.mark.parametrize("wrong", [None, 5, [], object(), "Model"])
def test_an_id_that_names_no_model_is_one_typed_error(runtime: bi.Runtime, model: bi.Model, wrong: Any) -> None:
    for ask in (runtime.model, runtime.unload, lambda value: runtime.cache.lookup(value, "x")):
        with pytest.raises(NotLoadedError, match=r"is not loaded; (known: |did you mean )"):
            ask(wrong)


@pytest.mark.parametrize("wrong", [5, b"x", "a\0b"])
def test_what_is_no_path_is_one_typed_error(runtime: bi.Runtime, model: bi.Model, wrong: Any) -> None:
    with pytest.raises(InvalidRequestError, match="a path is expected"):
        runtime.cache.import_(wrong)
    with pytest.raises(InvalidRequestError, match="a path is expected"):
        runtime.cache.export(model.id, "x", wrong)
    with pytest.raises(ConfigError, match="path="):
        runtime.start_tier("t", "disk", wrong, 1 << 20)


def test_what_is_neither_a_namespace_nor_a_tier_is_one_typed_error(runtime: bi.Runtime) -> None:
    with pytest.raises(InvalidRequestError, match="text is expected"):
        runtime.cache.clear(namespace=5)  # type: ignore[arg-type]
    with pytest.raises(TierUnknownError):
        runtime.cache.clear(tier=5)  # type: ignore[arg-type]


def test_a_configuration_is_not_a_dictionary() -> None:
    with pytest.raises(ConfigError, match="expected a RuntimeConfig"):
        bi.Runtime({"pressure": "none"})  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["safe", "gguf_chunked"])
def test_a_fingerprint_that_is_another_file_s_is_refused(runtime: bi.Runtime, tmp_path: Path, mode: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"})
    with pytest.raises(ConfigError, match="does not match the model file"):
        runtime.load_model(model_path=path, fingerprint="0" * 64, fingerprint_mode=mode)
