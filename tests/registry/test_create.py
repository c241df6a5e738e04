"""Models of one's own: from a name, a file, a blob, a spec; what is inherited, and what is refused."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from barrel_inference.errors import (
    BarrelError,
    DigestMismatchError,
    InvalidModelError,
    InvalidNameError,
    ManifestError,
    ModelfileError,
    ModelNotFoundError,
    TemplateError,
    UnsupportedError,
)
from barrel_inference.registry import Registry
from barrel_inference.registry.create import CreateRequest
from barrel_inference.registry.manifest import MAX_MANIFEST_BYTES
from tests.registry.conftest import pull
from tests.registry.weights import model, shards
from tests.support.hub import Hub

CONTENT = model(50_000)
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


async def create(registry: Registry, name: str, **fields: Any) -> list[str]:
    return [event["status"] async for event in registry.create(name, CreateRequest(**fields))]


@pytest.fixture
async def base(hub: Hub, registry: Registry) -> str:
    layers = [("model", CONTENT), ("system", b"Be kind."), ("params", b'{"stop":["<end>"],"temperature":0.5}')]
    hub.ollama("library/base", layers)
    await pull(registry, "base")
    return "base"


async def test_from_an_installed_model(registry: Registry, base: str) -> None:
    text = "FROM base\nPARAMETER temperature 0.1\nPARAMETER num_ctx 9000\nMESSAGE user hi"
    statuses = await create(registry, "me/mine:v1", modelfile=text)
    assert statuses[0].startswith("num_ctx 9000 is capped at 4096: raise registry.max_context_size")
    assert statuses[1:] == ["writing manifest", "success"]
    mine = registry.resolve("me/mine:v1")
    assert (mine.digest, mine.system, mine.messages) == (DIGEST, "Be kind.", ({"role": "user", "content": "hi"},))
    assert mine.parameters == {"stop": ["<end>"], "temperature": 0.1, "num_ctx": 9000} and mine.loader["n_ctx"] == 4096
    registry.remove("base")
    registry.gc()
    assert Path(registry.resolve("me/mine:v1").blob_path).read_bytes() == CONTENT


async def test_from_ollamas_fields(registry: Registry, base: str) -> None:
    fields = {"system": "", "template": "{{ .Prompt }}", "parameters": {"stop": "x"}, "license": "MIT"}
    await create(registry, "mine", from_="base", **fields, messages=[{"role": "user", "content": "hi"}])
    mine = registry.resolve("mine")
    assert (mine.system, mine.template, mine.license, mine.parameters["stop"]) == ("", "{{ .Prompt }}", ("MIT",), ["x"])


async def test_fields_win_over_the_modelfile(registry: Registry, base: str) -> None:
    await create(registry, "mine", modelfile="FROM base\nSYSTEM a", system="b")
    assert registry.resolve("mine").system == "b"


async def test_from_a_file_beside_the_modelfile(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "w.gguf").write_bytes(CONTENT)
    for source in ("./w.gguf", "w.gguf", str(tmp_path / "w.gguf"), f"file://{tmp_path}/w.gguf"):
        await create(registry, "mine", modelfile=f"FROM {source}", directory=str(tmp_path))
        assert registry.resolve("mine").digest == DIGEST


async def test_from_a_directory(registry: Registry, tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    request = {"modelfile": "FROM ./weights", "directory": str(tmp_path)}
    with pytest.raises(InvalidModelError, match="a directory without a GGUF file"):
        await create(registry, "mine", **request)
    (folder / "model.safetensors").write_bytes(b"x")
    for source in ("./weights", "weights"):
        with pytest.raises(InvalidModelError, match="not GGUF; convert it first"):
            await create(registry, "mine", modelfile=f"FROM {source}", directory=str(tmp_path))
    (folder / "w.gguf").write_bytes(CONTENT)
    (folder / "mmproj-w.gguf").write_bytes(model(100, 1, **{"general.type": "mmproj"}))
    await create(registry, "mine", **request)
    assert registry.resolve("mine").digest == DIGEST
    for number, part in enumerate(shards(2), 1):
        (folder / f"m-{number:05d}-of-00002.gguf").write_bytes(part)
    with pytest.raises(InvalidModelError, match=r"several models, name one: m-00001-of-00002\.gguf, w\.gguf"):
        await create(registry, "mine", **request)
    (folder / "w.gguf").unlink()
    await create(registry, "mine", **request)
    assert len(registry.resolve("mine").shards) == 2


async def test_a_directory_that_merely_has_the_name_of_a_model(registry: Registry, base: str, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    await create(registry, "mine", modelfile="FROM base", directory=str(tmp_path))
    assert registry.resolve("mine").system == "Be kind."


async def test_from_a_split_file_with_projector_and_adapter(registry: Registry, tmp_path: Path) -> None:
    for number, part in enumerate(shards(2), 1):
        (tmp_path / f"m-{number:05d}-of-00002.gguf").write_bytes(part)
    (tmp_path / "p.gguf").write_bytes(model(100, 1, **{"general.type": "mmproj"}))
    (tmp_path / "l.gguf").write_bytes(model(100, 2, **{"general.type": "adapter"}))
    text = "FROM ./m-00001-of-00002.gguf\nFROM ./p.gguf\nADAPTER ./l.gguf"
    await create(registry, "mine", modelfile=text, directory=str(tmp_path))
    mine = registry.resolve("mine")
    assert len(mine.shards) == 2 and mine.projector and len(mine.adapters) == 1
    assert registry.info("mine").n_params == 512
    assert registry.gc() == []


async def content_of(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 10_000):
        yield data[start : start + 10_000]


async def test_from_an_uploaded_blob(registry: Registry) -> None:
    assert not registry.has_blob(DIGEST)
    assert await registry.receive_blob(DIGEST, content_of(CONTENT))
    assert not await registry.receive_blob(DIGEST, content_of(b""))  # it is here already
    assert registry.has_blob(DIGEST) and registry.gc() == []  # spared: a create will follow
    await create(registry, "mine", files={"w.gguf": DIGEST})
    await create(registry, "mine2", modelfile=f"FROM @{DIGEST}")
    assert registry.resolve("mine").digest == registry.resolve("mine2").digest == DIGEST


async def test_a_split_model_is_uploaded_in_any_order(registry: Registry) -> None:
    files = {}
    for number, part in reversed(list(enumerate(shards(3)))):
        files[f"{number}.gguf"] = digest = f"sha256:{hashlib.sha256(part).hexdigest()}"
        await registry.receive_blob(digest, content_of(part))
    await create(registry, "mine", files=files)
    assert [shard.digest for shard in registry.resolve("mine").shards] == list(reversed(files.values()))


async def test_uploads_must_be_what_they_say(registry: Registry) -> None:
    with pytest.raises(DigestMismatchError, match=f'digest mismatch, expected "{DIGEST}", got "sha256:'):
        await registry.receive_blob(DIGEST, content_of(CONTENT + b"!"))
    assert not registry.has_blob(DIGEST) and list((registry.root / "tmp").iterdir()) == []
    with pytest.raises(InvalidNameError):
        await registry.receive_blob("sha256:../../../etc/passwd", content_of(b""))


async def test_from_a_model_that_has_to_be_pulled(hub: Hub, registry: Registry) -> None:
    hub.ollama("library/far", [("model", CONTENT)])
    statuses = await create(registry, "mine", modelfile="FROM far")
    assert statuses[0] == "pulling manifest" and statuses.count("success") == 1 and statuses[-1] == "success"
    assert registry.resolve("mine").digest == registry.resolve("far").digest


@pytest.mark.parametrize(
    ("fields", "error", "cause"),
    [
        ({}, ModelfileError, "neither 'from' or 'files'"),
        ({"modelfile": "FROM base\nEXPOSE 80"}, ModelfileError, "line 2"),
        ({"modelfile": "FROM base\nFROM base"}, ModelfileError, "exactly one model"),
        ({"from_": "base", "quantize": "q4_0"}, UnsupportedError, "quantiz"),
        ({"from_": "base", "template": "{{ .X"}, TemplateError, r"^line 1: unexpected"),
        ({"modelfile": "FROM base\n\nTEMPLATE {{ .X"}, TemplateError, r"^\(line 3\): .*unexpected"),
        ({"modelfile": 'FROM base\nTEMPLATE """a\n{% if %}"""'}, TemplateError, r"^\(line 2\): template error: line 2"),
        ({"from_": "base", "parameters": {"temprature": 1}}, ModelfileError, "did you mean temperature"),
        ({"from_": "base", "messages": [{"role": "bot", "content": "x"}]}, ModelfileError, "role"),
        ({"from_": "./w.gguf"}, InvalidNameError, "FROM names a path"),
        ({"from_": "/etc/passwd"}, InvalidNameError, "FROM names a path"),
        ({"from_": "file:///etc/passwd"}, InvalidNameError, "FROM names a path"),
        ({"files": {"x": "sha256:" + "0" * 64}}, ModelNotFoundError, "upload it"),
        ({"files": {"x": "../../etc/passwd"}}, InvalidNameError, "not a digest"),
        ({"from_": "/etc/passwd", "directory": "/"}, BarrelError, "not a GGUF file"),
        ({"from_": "/dev/zero", "directory": "/"}, BarrelError, "not a regular file"),
        ({"from_": "base", "adapters": {"l": "sha256:" + "0" * 64}}, ModelNotFoundError, "upload it"),
    ],
)
async def test_what_is_refused(
    registry: Registry, base: str, fields: dict[str, Any], error: type[BarrelError], cause: str
) -> None:
    with pytest.raises(error, match=cause):
        await create(registry, "mine", **fields)
    assert [m.name for m in registry.list().manifests] == ["base"]


async def test_edit_changes_parameters_in_place(registry: Registry, base: str) -> None:
    registry.edit("base", parameters={"num_ctx": 512, "top_k": 3}, system="S", template="{{ .Prompt }}")
    edited = registry.resolve("base")
    assert edited.parameters == {"stop": ["<end>"], "temperature": 0.5, "num_ctx": 512, "top_k": 3}
    assert (edited.loader["n_ctx"], edited.system) == (512, "S")
    registry.edit("base", unset=["num_ctx", "stop"], system="", template="")
    again = registry.resolve("base")
    assert again.parameters == {"temperature": 0.5, "top_k": 3} and again.loader["n_ctx"] == 2048
    assert again.system is None and again.template is None
    with pytest.raises(ModelfileError):
        registry.edit("base", parameters={"nope": 1})
    with pytest.raises(ModelfileError, match="did you mean temperature"):
        registry.edit("base", unset=["temprature"])
    for template in ("{{ if", "{% if %}"):
        with pytest.raises(TemplateError):
            registry.edit("base", template=template)
    assert registry.resolve("base").template is None


@pytest.mark.parametrize(
    ("system", "cause"), [("x" * MAX_MANIFEST_BYTES, "texts of .* are too long"), ("\udcff", "cannot be written down")]
)
async def test_what_could_not_be_read_back_is_not_written(
    registry: Registry, base: str, system: str, cause: str
) -> None:
    before = registry.resolve("base")
    with pytest.raises(ManifestError, match=cause):
        registry.edit("base", system=system)
    with pytest.raises(ManifestError, match=cause):
        await create(registry, "mine", from_="base", system=system)
    assert registry.list() == ([before], [])


async def test_the_modelfile_of_a_model_makes_it_again(registry: Registry, base: str) -> None:
    registry.copy("base", "other")
    registry.edit("other", parameters={"stop": ['a "b" ', "c\nd"]}, system='"""\nquoted\n')
    with pytest.raises(ModelfileError):  # a Modelfile cannot say that
        registry.modelfile(registry.resolve("other"))
    registry.edit("other", system='He said "no".\n')
    await create(registry, "third", modelfile=registry.modelfile(registry.resolve("other")))
    third, other = registry.resolve("third"), registry.resolve("other")
    assert (third.parameters, third.system, third.digest) == (other.parameters, other.system, other.digest)


async def test_verify_finds_what_has_changed(registry: Registry, base: str) -> None:
    assert [result.problem for result in registry.verify()] == [None]
    path = Path(registry.resolve("base").blob_path)
    path.write_bytes(CONTENT[:-1] + b"!")
    (result,) = registry.verify(["base"])
    assert result.problem and "has the digest sha256:" in result.problem
    path.unlink()
    assert [result.problem for result in registry.verify()] == ["missing"]
    path.mkdir()
    assert [result.problem for result in registry.verify()] == [f"{path.name}: not a regular file"]
    path.rmdir()
    with pytest.raises(ModelNotFoundError, match="weights of base:latest are gone"):
        registry.locate("base")
