"""Manifests on disk: exact form, case, damage, and a thousand of them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from barrel_inference.errors import ManifestError, ModelNotFoundError, RegistryError
from barrel_inference.registry import Manifest, Registry, gguf
from barrel_inference.registry.files import os_error
from barrel_inference.registry.manifest import decode, describe, encode, timestamp
from barrel_inference.registry.names import parse_name
from barrel_inference.registry.store import Store
from tests.registry.weights import model

DIGEST = "sha256:" + "ab" * 32
DEEP = b'{"a":' * 100_000


def manifest(name: str = "m:latest", **fields: Any) -> Manifest:
    parsed = parse_name(name)
    given = {"spec": "x", "digest": DIGEST, "blob_path": "/x", "size_bytes": 1, "modified_at": timestamp(0), **fields}
    return Manifest(name=parsed.name, tag=parsed.tag, **given)


@pytest.fixture
def store(registry: Registry) -> Store:
    registry._ground.root.prepare()
    return registry._ground.store


def test_round_trip_keeps_unknown_fields(store: Store) -> None:
    value = {**msgspec.to_builtins(manifest()), "from_the_future": {"a": [1]}}
    value.pop("extra", None)
    path = store.path(parse_name("m"))
    path.parent.mkdir()
    path.write_text(json.dumps(value))
    read = store.resolve("m")
    store.write(msgspec.structs.replace(read, system="hello"))
    written = json.loads(path.read_text())
    assert written["from_the_future"] == {"a": [1]} and written["system"] == "hello" and "extra" not in written


def test_an_unknown_field_may_have_any_name() -> None:
    content = json.dumps({**json.loads(encode(manifest())), "extra": {"name": "x"}, "from_the_future": 1})
    assert decode(content.encode()).extra == {"extra": {"name": "x"}, "from_the_future": 1}
    assert json.loads(encode(decode(content.encode()))) == json.loads(content)


def test_encode_and_decode_agree() -> None:
    given = manifest("a/b:c", parameters={"stop": ["x"]}, license=("l",), extra={"k": 1})
    assert decode(encode(given)) == given


@pytest.mark.parametrize("content", [b"", b"\0" * 600, b"{", b"[]", b'{"name": 5}', b"\xff\xfe", b'{"name":"x"}', DEEP])
def test_unreadable_manifests_are_set_aside_and_stop_nothing(store: Store, registry: Registry, content: bytes) -> None:
    store.write(manifest("good"))
    store.write(manifest("bad"))
    path = store.path(parse_name("bad"))
    path.write_bytes(content)
    for _ in range(2):  # when it is found, and ever after
        listing = store.list()
        assert [m.name for m in listing.manifests] == ["good"]
        assert [broken.name for broken in listing.broken] == ["bad:latest"]
    assert not path.exists() and path.with_name("latest.json.bad").read_bytes() == content
    registry.remove("bad")
    assert store.list().broken == []
    with pytest.raises(ModelNotFoundError):
        registry.remove("bad")


@pytest.mark.parametrize("digest", ["sha256:../../x", "x", "sha256:" + "g" * 64])
def test_digests_are_checked_before_they_are_believed(digest: str) -> None:
    with pytest.raises(Exception, match="not a digest"):
        decode(encode(manifest(digest=digest)))


def test_a_manifest_under_another_name_than_its_own() -> None:
    with pytest.raises(ManifestError, match="not in shortest form"):
        decode(encode(msgspec.structs.replace(manifest(), name="library/m")))


def test_names_are_found_in_any_case_and_keep_their_own(store: Store, registry: Registry) -> None:
    store.write(manifest("Org/Model:Tag"))
    assert registry.resolve("org/MODEL:tag").model_name == parse_name("Org/Model:Tag")
    registry.copy("org/model:TAG", "ORG/model:taG")
    assert [str(m.model_name) for m in store.list().manifests] == ["Org/Model:Tag"]


def test_a_name_without_tag_means_the_only_one(store: Store, registry: Registry) -> None:
    store.write(manifest("a/b:q4"))
    assert registry.resolve("a/b").tag == "q4"
    store.write(manifest("a/b:q8"))
    with pytest.raises(ModelNotFoundError):
        registry.resolve("a/b")
    store.write(manifest("a/b:main"))
    assert registry.resolve("a/b").tag == "main"
    store.write(manifest("a/b:latest"))
    assert registry.resolve("a/b").tag == "latest"


def test_a_link_among_the_manifests_is_left_alone(store: Store, registry: Registry, tmp_path: Path) -> None:
    store.write(manifest("a"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "latest.json").write_bytes(b"{")
    (elsewhere / "good.json").write_bytes(encode(manifest("evil:good")))
    store.path(parse_name("a")).parent.with_name("evil").symlink_to(elsewhere)
    for attempt in (registry.resolve, registry.remove, lambda name: registry.copy("a", name)):
        for name in ("evil", "evil:good"):
            with pytest.raises(RegistryError, match="is a link"):
                attempt(name)
    assert sorted(path.name for path in elsewhere.iterdir()) == ["good.json", "latest.json"]
    assert [m.name for m in store.list().manifests] == ["a"] and registry.gc() == []


def test_what_a_file_calls_itself_fits_a_column(tmp_path: Path) -> None:
    odd = "7B\n\x1b[2J" + "x" * 1000
    path = tmp_path / "m.gguf"
    path.write_bytes(model(**{"general.architecture": odd, "general.size_label": odd}))
    facts = describe(gguf.read(path), 4096)
    assert facts["parameter_size"] == facts["architecture"] == "7B[2J" + "x" * 57


def test_newest_first(store: Store) -> None:
    for age, name in enumerate(["old", "older", "oldest"]):
        store.write(manifest(name, modified_at=timestamp(1000 - age)))
    assert [m.name for m in store.list().manifests] == ["old", "older", "oldest"]


def test_a_thousand_manifests(store: Store) -> None:
    template = "{{ x }}" * 500
    for number in range(1000):
        path = store.path(parse_name(f"org/model-{number}"))
        path.parent.mkdir()
        path.write_bytes(encode(manifest(f"org/model-{number}", chat_template=template)))
    began = time.process_time()  # of this process: others may be busy
    assert len(store.list().manifests) == 1000
    assert time.process_time() - began < 2  # 0.05 s on a calm machine, see benchmarks/results/registry.md


def test_writes_leave_no_temporary_files(store: Store) -> None:
    store.write(manifest())
    assert [path.name for path in store.path(parse_name("m")).parent.iterdir()] == ["latest.json"]


@pytest.mark.parametrize(
    ("number", "code"), [(28, "disk_full"), (30, "read_only"), (13, "read_only"), (5, "registry_error")]
)
def test_what_the_file_system_refuses(number: int, code: str) -> None:
    assert os_error(OSError(number, os.strerror(number)), Path("x")).code == code


def test_the_format_is_written_though_it_is_the_default() -> None:
    assert json.loads(encode(manifest()))["format"] == "gguf"
