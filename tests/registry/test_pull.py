"""Pulls from every source but the real ones: events, joining, leaving, dying, and what must never be written."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest

from barrel_inference.errors import InvalidModelError, ModelNotFoundError, PullError, UnsupportedError
from barrel_inference.registry import Registry
from tests.registry.conftest import Killing, open_registry, pull
from tests.registry.weights import model, shards
from tests.support.hub import Fault, Hub
from tests.support.waiting import eventually

CONTENT = model(200_000)
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
TEMPLATE = b"{{ .System }}{{ .Prompt }}"


def blobs(registry: Registry) -> list[str]:
    return sorted(path.name for path in (registry.root / "blobs").iterdir())


def leftovers(registry: Registry) -> list[str]:
    return sorted(path.name for path in (registry.root / "tmp").iterdir())


async def test_hub_repository_end_to_end(hub: Hub, registry: Registry) -> None:
    hub.repository("Org/Repo", {"x-q8_0.gguf": model(9000, 1), "x-Q4_K_M.gguf": CONTENT, "README.md": b"hi"})
    events = await pull(registry, "hf://Org/Repo")
    statuses = list(dict.fromkeys(event["status"] for event in events))
    wanted = ["pulling manifest", f"pulling {DIGEST}", "verifying sha256 digest", "writing manifest", "success"]
    assert statuses == wanted
    last = next(event for event in reversed(events) if "total" in event)
    assert last == {"status": f"pulling {DIGEST}", "digest": DIGEST, "total": len(CONTENT), "completed": len(CONTENT)}
    manifest = registry.resolve("Org/Repo")
    assert (manifest.name, manifest.tag, manifest.spec, manifest.digest) == (
        "Org/Repo",
        "main",
        "hf://Org/Repo",
        DIGEST,
    )
    assert manifest == registry.resolve("hf://Org/Repo") == registry.resolve("org/repo:MAIN")
    assert Path(manifest.blob_path).read_bytes() == CONTENT
    assert manifest.blob_path == str(registry.root / "blobs" / f"sha256-{DIGEST[7:]}.gguf")
    assert (registry.root / "manifests" / "Org:Repo" / "main.json").is_file()
    assert manifest.loader == {"n_gpu_layers": 0, "n_ctx": 2048, "n_batch": 512, "quant_type": "f32", "quant_bits": 32}
    assert (manifest.architecture, manifest.context_size, manifest.embedding_length) == ("llama", 2048, 64)
    (ref,) = (registry.root / "refs").iterdir()
    assert ref.read_text() == manifest.blob_path
    assert leftovers(registry) == []


async def test_a_pull_that_brought_nothing_leaves_nothing_and_one_that_was_broken_off_its_part(
    hub: Hub, registry: Registry
) -> None:
    hub.repository("Org/Repo", {"m.gguf": CONTENT})
    weights = hub.resources["/cdn/Org/Repo/m.gguf"]
    weights.faults = [Fault(status=404)]
    with pytest.raises(PullError):
        await pull(registry, "hf://Org/Repo")
    assert leftovers(registry) == []
    weights.skip, weights.faults = 1, [Fault(stall_at=50_000), Fault(status=404)]
    with pytest.raises(PullError):
        await pull(registry, "hf://Org/Repo")
    part, _state = leftovers(registry)
    assert (registry.root / "tmp" / part).stat().st_size > 0
    weights.faults = [Fault(status=404)]
    with pytest.raises(PullError):
        await pull(registry, "hf://Org/Repo")
    assert len(leftovers(registry)) == 2


async def test_a_second_pull_fetches_nothing(hub: Hub, registry: Registry) -> None:
    hub.repository("Org/Repo", {"m.gguf": CONTENT})
    await pull(registry, "hf://Org/Repo")
    before = len(hub.requests_for("/cdn/Org/Repo/m.gguf"))
    assert (await pull(registry, "hf.co/Org/Repo:latest"))[-1] == {"status": "success"}
    assert len(hub.requests_for("/cdn/Org/Repo/m.gguf")) == before
    assert len(registry.list().manifests) == 2 and len(blobs(registry)) == 1


async def test_a_pull_of_the_same_again_keeps_unknown_fields_and_undoes_edits(hub: Hub, registry: Registry) -> None:
    hub.ollama("library/tiny", [("model", CONTENT), ("params", b'{"top_k":7}')])
    await pull(registry, "tiny")
    path = registry.root / "manifests" / "tiny" / "latest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "from_the_future": [1]}))
    registry.edit("tiny", parameters={"top_k": 1, "seed": 5})
    await pull(registry, "tiny")
    assert registry.resolve("tiny").parameters == {"top_k": 7}
    assert json.loads(path.read_text())["from_the_future"] == [1]


async def test_the_quantization_asked_for(hub: Hub, registry: Registry) -> None:
    hub.repository("Org/Repo", {"a-Q4_K_M.gguf": model(999, 1), "a-Q4_K_S.gguf": CONTENT, "mmproj-f16.gguf": b""})
    await pull(registry, "hf.co/Org/Repo:q4_k_s")
    assert registry.resolve("hf.co/Org/Repo:q4_k_s").digest == DIGEST
    with pytest.raises(PullError, match=r"no Q9_X file; there are: a-Q4_K_M\.gguf, a-Q4_K_S\.gguf"):
        await pull(registry, "hf.co/Org/Repo:Q9_X")


async def test_the_hub_token_goes_to_the_hub_only(hub: Hub, tmp_path: Path) -> None:
    hub.repository("Org/Gated", {"m.gguf": CONTENT}, token="hf_secret")
    with pytest.raises(PullError, match="set HF_TOKEN"):
        await pull(open_registry(tmp_path / "a", hub), "hf://Org/Gated")
    with Hub() as cdn:
        cdn.serve("/m", CONTENT)
        hub.resources["/Org/Gated/resolve/c0ffee/m.gguf"].redirect = lambda: f"{cdn.url}/m"
        registry = open_registry(tmp_path / "b", hub, hf_token="hf_secret", allow_private=True)
        await pull(registry, "hf://Org/Gated", insecure=True)
        assert cdn.seen and not any("authorization" in seen.headers for seen in cdn.seen)
    assert registry.resolve("Org/Gated").digest == DIGEST


async def test_split_models_become_one(hub: Hub, registry: Registry) -> None:
    parts = shards(3)
    hub.repository("Org/Split", {f"q/m-{i:05d}-of-00003.gguf": part for i, part in enumerate(parts, 1)})
    await pull(registry, "hf://Org/Split")
    located = registry.locate("Org/Split")
    assert located.path.name == "model-00001-of-00003.gguf" and located.manifest
    assert registry.info("Org/Split").n_params == 3 * 256
    assert [Path(file.blob_path).read_bytes() for file in located.manifest.shards] == parts
    assert located.manifest.size_bytes == sum(map(len, parts))
    registry.remove("Org/Split")
    assert {item.kind for item in registry.gc()} == {"blob", "shards", "ref"}
    assert blobs(registry) == []


async def test_an_ollama_model_with_all_its_layers(hub: Hub, registry: Registry) -> None:
    projector = model(500, 5, **{"general.type": "mmproj", "general.architecture": "clip"})
    layers = [("model", CONTENT), ("template", TEMPLATE), ("system", b"Be kind."), ("license", b"MIT")]
    layers += [("params", b'{"stop":["<end>"],"num_ctx":999,"who":1,"top_k":"many"}'), ("projector", projector)]
    layers += [("license", b"B"), ("messages", b'[{"role":"user","content":"hi"}]')]
    hub.ollama("library/tiny", layers)
    events = await pull(registry, "tiny")
    assert events[0]["status"] == "pulling manifest" and events[-1]["status"] == "success"
    manifest = registry.resolve("tiny")
    assert (manifest.template, manifest.system, manifest.license) == (TEMPLATE.decode(), "Be kind.", ("MIT", "B"))
    assert manifest.parameters == {"stop": ["<end>"], "num_ctx": 999} and manifest.loader["n_ctx"] == 999
    assert manifest.projector and Path(manifest.projector.blob_path).read_bytes() == projector
    assert manifest.messages == ({"role": "user", "content": "hi"},) and "vision" in manifest.capabilities


@pytest.mark.parametrize(
    ("listing", "cause"),
    [
        (b"{" * 10, "not understood"),
        (b'{"layers": [{"mediaType": "x", "digest": "sha256:../../etc", "size": 1}]}', "holds no GGUF"),
        (b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "x/../y", "size": 1}]}', "digest"),
        (b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "x", "size": -1}]}', "sane"),
        (b'{"layers": []}', "holds no GGUF"),
        (b'{"layers": ' + b"[" * 100_000, "not understood"),
        (b'{"config": ' + b'{"a":' * 100_000, "not understood"),
    ],
)
async def test_manifests_that_are_not_sane(hub: Hub, registry: Registry, listing: bytes, cause: str) -> None:
    hub.serve("/v2/library/evil/manifests/latest", listing)
    with pytest.raises((PullError, UnsupportedError), match=cause):
        await pull(registry, "evil")
    assert blobs(registry) == [] and list((registry.root / "manifests").iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        *(
            ("messages", b"[1, 2]"),
            ("messages", b'[{"role": "user"}]'),
            ("messages", b'[{"role": "x", "content": ""}]'),
        ),
        *(("params", b"[]"), ("params", b'{"stop":' + b"[" * 100_000)),
    ],
    ids=["no messages", "no content", "no role", "no object", "deep"],
)
async def test_layers_that_are_not_sane(hub: Hub, registry: Registry, kind: str, content: bytes) -> None:
    hub.ollama("library/odd", [("model", CONTENT), (kind, content)])
    with pytest.raises(PullError, match=f"the model's {kind} layer is not understood"):
        await pull(registry, "odd")
    assert registry.list() == ([], [])


async def test_a_listing_that_is_not_sane(hub: Hub, registry: Registry) -> None:
    hub.serve("/api/models/Org/Evil/revision/main", b'{"siblings": ' + b"[" * 100_000)
    with pytest.raises(PullError, match="listing of Org/Evil is not understood"):
        await pull(registry, "hf://Org/Evil")
    hub.serve("/api/models", b"[" * 100_000)
    with pytest.raises(PullError, match="the search's answer is not understood"):
        await registry.search("x")


async def test_an_endless_manifest(hub: Hub, registry: Registry) -> None:
    hub.serve("/v2/library/endless/manifests/latest", b"x" * 65536).faults = [Fault(endless=True)]
    with pytest.raises(PullError, match="more than 4194304 bytes"):
        await pull(registry, "endless")


async def test_unknown_models(hub: Hub, registry: Registry) -> None:
    with pytest.raises(PullError, match="pull model manifest: file does not exist"):
        await pull(registry, "nothing")
    with pytest.raises(PullError, match="does not exist on the Hub"):
        await pull(registry, "hf://No/Where")
    with pytest.raises(ModelNotFoundError, match="model 'nothing' not found"):
        registry.resolve("nothing")


async def test_a_plain_url_and_its_new_versions(hub: Hub, tmp_path: Path) -> None:
    registry = open_registry(tmp_path / "m", hub, allow_private=True)
    hub.serve("/files/my-model.gguf", CONTENT)
    url = f"{hub.url}/files/my-model.gguf"
    await pull(registry, url, insecure=True)
    assert registry.resolve("my-model").digest == DIGEST
    hub.seen.clear()
    await pull(registry, url, insecure=True)
    assert [seen.headers.get("range") for seen in hub.seen] == ["bytes=0-0"]  # it asked, and nothing had changed
    other = model(100_000, 9)
    hub.serve("/files/my-model.gguf", other)
    await pull(registry, url, insecure=True)
    assert Path(registry.resolve("my-model").blob_path).read_bytes() == other
    assert [item.kind for item in registry.gc()] == ["blob"]


async def test_plain_http_needs_to_be_allowed(hub: Hub, tmp_path: Path) -> None:
    hub.serve("/m.gguf", CONTENT)
    registry = Registry(tmp_path / "m")
    with pytest.raises(PullError, match="plain http"):
        await pull(registry, f"{hub.url}/m.gguf")
    with pytest.raises(PullError, match="private address"):
        await pull(registry, f"{hub.url}/m.gguf", insecure=True)


async def test_what_is_not_gguf_is_not_kept(hub: Hub, tmp_path: Path) -> None:
    registry = open_registry(tmp_path / "m", hub, allow_private=True)
    hub.serve("/page.gguf", b"<html>Please log in</html>" * 9)
    with pytest.raises(InvalidModelError, match=r"page.gguf: not a GGUF file \(it begins with b'<htm'\)"):
        await pull(registry, f"{hub.url}/page.gguf", insecure=True)
    assert blobs(registry) == leftovers(registry) == []


async def test_a_file_of_this_machine_is_linked(registry: Registry, tmp_path: Path) -> None:
    path = tmp_path / "My Model.gguf"
    path.write_bytes(CONTENT)
    events = await pull(registry, str(path))
    assert any(event["status"] == "hashing My Model.gguf" for event in events)
    manifest = registry.resolve("My-Model")
    assert manifest.digest == DIGEST and Path(manifest.blob_path).samefile(path)
    registry.remove("My-Model")
    registry.gc()
    assert path.read_bytes() == CONTENT


async def test_a_file_of_another_file_system_is_referred_to(registry: Registry) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == registry.root.parent.stat().st_dev:
        pytest.skip("there is no second file system")
    path = other / f"barrel-{os.getpid()}.gguf"
    try:
        path.write_bytes(CONTENT)
        await pull(registry, f"file://{path}")
        assert registry.resolve(str(path)).blob_path == str(path)
        registry.gc()
        assert registry.locate(f"barrel-{os.getpid()}").path == path
    finally:
        path.unlink()


@pytest.mark.parametrize("path", ["/dev/zero", "/nonexistent/x.gguf", "/proc/self/mem", "/"])
async def test_paths_that_are_no_models(registry: Registry, path: str) -> None:
    with pytest.raises(InvalidModelError):
        await pull(registry, path)


async def test_callers_of_the_same_pull_share_one_download(hub: Hub, registry: Registry) -> None:
    hub.repository("Org/Repo", {"m.gguf": model(4 << 20)})
    hub.bytes_per_s = 8e6
    first, second = await asyncio.gather(pull(registry, "hf://Org/Repo"), pull(registry, "hf://Org/Repo"))
    for events in (first, second):
        assert events[0]["status"] == "pulling manifest" and events[-1]["status"] == "success"
        done = [event["completed"] for event in events if "completed" in event]
        assert done == sorted(done)
    assert len(hub.requests_for("/api/models/Org/Repo/revision/main")) == 1


async def test_the_download_stops_when_the_last_caller_leaves(hub: Hub, registry: Registry) -> None:
    content = model(8 << 20)
    hub.repository("Org/Repo", {"m.gguf": content})
    hub.bytes_per_s = 4e6

    async def leave_after(n_bytes: int) -> None:
        async with aclosing(registry.pull("hf://Org/Repo")) as events:
            async for event in events:
                if event.get("completed", 0) >= n_bytes:
                    return

    staying = asyncio.ensure_future(leave_after(1 << 20))
    await leave_after(1 << 18)
    assert not staying.done()  # the other one still watches, and it goes on
    await staying
    sent = hub.sent_bytes
    assert [name.split(".")[1] for name in leftovers(registry)] == ["part", "part"]
    hub.bytes_per_s = None
    await pull(registry, "hf://Org/Repo")
    assert Path(registry.resolve("Org/Repo").blob_path).read_bytes() == content
    assert hub.sent_bytes - sent < len(content)


PULLER = """
import asyncio, sys
from pathlib import Path
from barrel_inference.config import RegistryOpts
from barrel_inference.registry import Registry
root, url, spec = sys.argv[1:]
registry = Registry(Path(root), RegistryOpts(hf_endpoint=url, ollama_endpoint=url))
async def main():
    async for event in registry.pull(spec):
        print(event.get("completed", event["status"]), flush=True)
asyncio.run(main())
"""


def start_pull(registry: Registry, hub: Hub, spec: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PULLER, str(registry.root), hub.url, spec]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_killed_pulls_go_on_where_they_were(hub: Hub, registry: Registry, seed: int) -> None:
    content = model(40 << 20)  # pieces for all connections
    hub.repository("Org/Repo", {"m.gguf": content})
    killing, chance, n_kills = Killing(hub, registry.root), random.Random(seed), 6
    for _ in range(n_kills):
        await killing.kill_at(start_pull(registry, hub, "hf://Org/Repo"), chance.randint(100_000, 5 << 20))
    assert registry.list().manifests == []
    killing.end()
    await pull(registry, "hf://Org/Repo")
    assert Path(registry.resolve("Org/Repo").blob_path).read_bytes() == content
    assert {item.kind for item in registry.gc()} == {"temporary"}  # the dead ones' work directories
    listings = len(hub.requests_for("/api/models/Org/Repo/revision/main")) * 1024
    assert hub.sent_bytes - listings - len(content) <= n_kills * Killing.WINDOW


async def test_two_processes_pull_the_same(hub: Hub, registry: Registry) -> None:
    content = model(6 << 20)
    hub.repository("Org/Repo", {"m.gguf": content})
    hub.bytes_per_s = 6e6
    process = start_pull(registry, hub, "hf://Org/Repo")
    await eventually(lambda: hub.sent_bytes > 1 << 20)
    events = await pull(registry, "hf://Org/Repo")
    assert process.wait(120) == 0
    process.stdout.close()  # type: ignore[union-attr]
    assert events[-1]["status"] == "success" and any(event.get("completed") for event in events)
    assert Path(registry.resolve("Org/Repo").blob_path).read_bytes() == content
    assert hub.sent_bytes < len(content) + (1 << 20)  # only one of them fetched it


@pytest.mark.parametrize("source", ["hf://Org/Repo", "file"])
async def test_a_pull_repairs_a_damaged_blob(hub: Hub, registry: Registry, tmp_path: Path, source: str) -> None:
    hub.repository("Org/Repo", {"m.gguf": CONTENT})
    await pull(registry, "hf://Org/Repo")
    blob = Path(registry.resolve("Org/Repo").blob_path)
    blob.write_bytes(bytes([CONTENT[0] ^ 1]) + CONTENT[1:])
    own = tmp_path / "m.gguf"
    own.write_bytes(CONTENT)
    await pull(registry, str(own) if source == "file" else source)
    assert blob.read_bytes() == CONTENT


async def test_progress_is_told_while_nothing_arrives(hub: Hub, tmp_path: Path) -> None:
    registry = open_registry(tmp_path / "models", hub, stall_s=3600.0)
    hub.repository("Org/Repo", {"m.gguf": CONTENT})
    resource = hub.resources["/cdn/Org/Repo/m.gguf"]
    resource.skip, resource.faults = 1, [Fault(stall_at=50_000)]
    told: list[int | None] = []
    async with asyncio.timeout(120), aclosing(registry.pull("hf://Org/Repo")) as events:
        async for event in events:
            told.append(event.get("completed"))
            if told[-1] and told[-5:] == [told[-1]] * 5:
                break
    assert told[-1] == 50_000


async def test_nothing_is_written_through_links_out_of_the_root(hub: Hub, registry: Registry, tmp_path: Path) -> None:
    hub.repository("Org/Repo", {"m.gguf": CONTENT})
    outside = tmp_path / "outside"
    outside.mkdir()
    registry.root.mkdir()
    (registry.root / "blobs").symlink_to(outside)
    with pytest.raises(Exception, match="a link that leaves the models directory"):
        await pull(registry, "hf://Org/Repo")
    (registry.root / "blobs").unlink()
    (registry.root / "manifests").mkdir()
    (registry.root / "manifests" / "Org:Repo").symlink_to(outside)
    with pytest.raises(Exception, match="is a link; nothing behind it is read or written"):
        await pull(registry, "hf://Org/Repo")
    assert list(outside.iterdir()) == []


async def test_who_leaves_as_the_pull_begins_leaves_no_lease(hub: Hub, registry: Registry) -> None:
    """At every moment: as its lease is being opened by a thread, before, after."""
    hub.ollama("library/m", [("model", CONTENT)])
    for turns in range(40):
        pulling = asyncio.create_task(pull(registry, "m"))
        for _ in range(turns):
            await asyncio.sleep(0)
        pulling.cancel()
        await asyncio.wait([pulling])
    await eventually(lambda: not list((registry.root / "tmp").glob("*.lease")))
