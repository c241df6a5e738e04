"""Pulls from a real OCI registry (Debian's docker-registry), and the token flow against the hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from barrel_inference.errors import PullError
from barrel_inference.registry import Registry
from tests.registry.conftest import open_registry, pull
from tests.registry.weights import model
from tests.support import oci
from tests.support.hub import Fault, Hub
from tests.support.oci import OciRegistry

CONTENT = model(20 << 20, 3)
OLLAMA = "application/vnd.ollama.image."
LAYERS = [(OLLAMA + "model", CONTENT), (OLLAMA + "template", b"{{ .Prompt }}"), (OLLAMA + "params", b'{"top_k":7}')]


def start(directory: Path, **options: Any) -> OciRegistry:
    try:
        return OciRegistry(oci.find(), directory, **options)
    except oci.MissingError as reason:
        pytest.skip(str(reason))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OciRegistry]:
    directory = tmp_path / "oci"
    directory.mkdir()
    with start(directory) as running:
        yield running


async def test_an_ollama_model_in_a_real_registry(server: OciRegistry, hub: Hub, tmp_path: Path) -> None:
    server.push("me/tiny", LAYERS, tag="v1")
    registry = open_registry(tmp_path / "m", hub, allow_private=True)
    events = await pull(registry, f"{server.host}/me/tiny:v1", insecure=True)
    manifest = registry.resolve(f"{server.host}/me/tiny:v1")
    assert Path(manifest.blob_path).read_bytes() == CONTENT
    assert (manifest.template, manifest.parameters) == ("{{ .Prompt }}", {"top_k": 7})
    assert (registry.root / "manifests" / f"127.0.0.1:{server.port}:me:tiny" / "v1.json").is_file()
    assert events[-1] == {"status": "success"}


async def test_as_a_mirror_of_ollamas_registry(server: OciRegistry, tmp_path: Path, hub: Hub) -> None:
    server.push("library/tiny", LAYERS)
    registry = open_registry(tmp_path / "m", hub, ollama_endpoint=f"http://{server.host}")
    await pull(registry, "tiny")
    assert registry.resolve("tiny").spec == "ollama://registry.ollama.ai/library/tiny:latest"


async def test_any_artifact_with_a_gguf_layer(server: OciRegistry, tmp_path: Path, hub: Hub) -> None:
    server.push("ai/tiny", [("application/vnd.docker.ai.gguf.v3", CONTENT)])
    registry = open_registry(tmp_path / "m", hub, allow_private=True)
    await pull(registry, f"{server.host}/ai/tiny", insecure=True)
    assert registry.resolve(f"{server.host}/ai/tiny").size_bytes == len(CONTENT)


async def test_plain_http_and_loopback_must_be_allowed(server: OciRegistry, tmp_path: Path) -> None:
    server.push("me/tiny", LAYERS)
    with pytest.raises(PullError, match="private address"):
        await pull(Registry(tmp_path / "m"), f"{server.host}/me/tiny")


async def test_blobs_behind_a_password(tmp_path: Path, hub: Hub) -> None:
    directory = tmp_path / "oci"
    directory.mkdir()
    with start(directory, password=True) as server:
        server.push("me/tiny", LAYERS)
        options = {"allow_private": True}
        with pytest.raises(PullError, match="set registry_credentials"):
            await pull(open_registry(tmp_path / "a", hub, **options), f"{server.host}/me/tiny", insecure=True)
        logins = {server.host: "user:password"}
        registry = open_registry(tmp_path / "b", hub, registry_credentials=logins, **options)
        await pull(registry, f"{server.host}/me/tiny", insecure=True)
        assert Path(registry.resolve(f"{server.host}/me/tiny").blob_path).read_bytes() == CONTENT


def guard(hub: Hub, realm: str) -> None:
    """Ask for a token from ``realm`` wherever the hub is asked for a manifest or blob."""
    for path, resource in hub.resources.items():
        if path.startswith("/v2/"):
            resource.authorization = "Bearer t0ken"
            resource.challenge = f'Bearer realm="{realm}",service="s",scope="repository:library/x:pull"'


async def test_anonymous_tokens(hub: Hub, registry: Registry) -> None:
    hub.ollama("library/x", [("model", CONTENT)])
    hub.serve("/token", json.dumps({"token": "t0ken"}).encode())
    guard(hub, f"{hub.url}/token")
    await pull(registry, "x")
    (asked,) = hub.requests_for("/token")
    assert asked.path == "/token?service=s&scope=repository%3Alibrary%2Fx%3Apull"
    assert "authorization" not in asked.headers
    assert registry.resolve("x").digest == f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@pytest.mark.parametrize("before", ["", 'Basic realm="s"\r\nWWW-Authenticate: '])
async def test_challenges_without_quotes_and_beside_others(hub: Hub, registry: Registry, before: str) -> None:
    hub.ollama("library/x", [("model", CONTENT)])
    hub.serve("/token", json.dumps({"token": "t0ken"}).encode())
    guard(hub, f"{hub.url}/token")
    for resource in hub.resources.values():
        resource.challenge = f"{before}Bearer Realm={hub.url}/token, service=s"
    await pull(registry, "x")
    assert [seen.path for seen in hub.requests_for("/token")] == ["/token?service=s"]


@pytest.mark.parametrize("realm", ["https://[::1", "https://h:99999/", "/token"])
async def test_a_realm_that_is_no_url(hub: Hub, registry: Registry, realm: str) -> None:
    hub.ollama("library/x", [("model", CONTENT)])
    guard(hub, realm)
    with pytest.raises(PullError, match="refusing to follow"):
        await pull(registry, "x")


async def test_a_token_that_expires_is_replaced(hub: Hub, registry: Registry) -> None:
    hub.ollama("library/x", [("model", CONTENT)])  # three pieces
    hub.serve("/token", json.dumps({"token": "t0ken"}).encode())
    guard(hub, f"{hub.url}/token")
    blob = hub.resources[f"/v2/library/x/blobs/sha256:{hashlib.sha256(CONTENT).hexdigest()}"]
    expired = Fault(status=401, headers={"WWW-Authenticate": blob.challenge})
    blob.skip, blob.faults = 2, [expired]
    await pull(registry, "x")
    assert len(hub.requests_for("/token")) == 2 and not blob.faults
    assert Path(registry.resolve("x").blob_path).read_bytes() == CONTENT


async def test_a_token_that_is_never_good(hub: Hub, registry: Registry) -> None:
    hub.ollama("library/x", [("model", CONTENT)])
    hub.serve("/token", json.dumps({"token": "t0ken"}).encode())
    guard(hub, f"{hub.url}/token")
    hub.resources[f"/v2/library/x/blobs/sha256:{hashlib.sha256(CONTENT).hexdigest()}"].authorization = "Bearer other"
    with pytest.raises(PullError, match="answered 401"):
        await pull(registry, "x")


async def test_a_login_is_not_told_to_a_realm_elsewhere(hub: Hub, tmp_path: Path) -> None:
    hub.ollama("library/x", [("model", CONTENT)])
    with Hub() as thief:
        thief.serve("/token", b'{"token": "t0ken"}')
        guard(hub, f"{thief.url}/token")
        logins = {hub.url.removeprefix("http://"): "user:password"}
        options = {"registry_credentials": logins, "allow_private": True}
        registry = open_registry(tmp_path / "m", hub, **options)
        await pull(registry, "x", insecure=True)
        assert thief.seen and not any("authorization" in seen.headers for seen in thief.seen)


async def test_a_realm_may_not_be_a_private_address(hub: Hub, registry: Registry) -> None:
    hub.ollama("library/x", [("model", CONTENT)])
    guard(hub, "https://169.254.169.254/latest")
    with pytest.raises(PullError, match="private address"):
        await pull(registry, "x")
