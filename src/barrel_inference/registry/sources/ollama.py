"""Ollama registries, and any OCI distribution registry that holds GGUF layers. No ``Location`` header is needed, blobs
may want authorization, and a login goes to the host it belongs to only."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from typing import Any, Literal, NamedTuple, TypedDict
from urllib.parse import urlencode, urlsplit

import aiohttp
import msgspec

from barrel_inference.errors import InvalidNameError, PullError, UnsupportedError
from barrel_inference.registry.blobs import require_digest
from barrel_inference.registry.download.network import (
    Credential,
    TransientError,
    check_url,
    host_and_port,
    origin_of,
)
from barrel_inference.registry.download.server import Remote
from barrel_inference.registry.names import DEFAULT_HOST, Spec, parse_digest
from barrel_inference.registry.sources import MAX_TEXT_BYTES, Artifact, Context, Resolution, Role, understood

ACCEPT = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"
MAX_LAYERS = 1000
_PREFIX = "application/vnd.ollama.image."
_ROLES: dict[str, Role] = {"model": "model", "projector": "projector", "adapter": "adapter"}
_TEXTS = ("template", "prompt", "system", "params", "messages", "license")
_CHALLENGE = re.compile(r'(\w+)=(?:"([^"]*)"|([^\s",]+))')


class _Layer(msgspec.Struct, rename="camel"):
    media_type: str
    digest: str
    size: int

    @property
    def kind(self) -> str:
        if self.media_type.startswith(_PREFIX):
            return self.media_type.removeprefix(_PREFIX)
        return "model" if "gguf" in self.media_type.lower() else self.media_type


class _Message(TypedDict):
    role: Literal["system", "user", "assistant"]
    content: str


class _Manifest(msgspec.Struct):
    layers: list[_Layer]


class _Repository(NamedTuple):
    """Where blobs are: ``<base>/v2/<path>``, and what opens them."""

    url: str
    credential: Credential | None


async def resolve(spec: Spec, context: Context) -> Resolution:
    repository, manifest = await _manifest(spec, context)
    layers = manifest.layers
    if len(layers) > MAX_LAYERS or any(layer.size < 0 for layer in layers):
        raise PullError("the registry's manifest is not sane")
    artifacts = tuple(_artifact(repository, layer, context) for layer in layers if layer.kind in _ROLES)
    if not any(artifact.role == "model" for artifact in artifacts):
        kinds = ", ".join(sorted({layer.kind for layer in layers})) or "nothing"
        raise UnsupportedError(f"{spec.canonical} holds no GGUF model (but {kinds})")
    fields: dict[str, Any] = {}
    for layer in layers:
        if layer.kind in _TEXTS:
            _add_text(fields, layer.kind, await _text(repository, layer, context))
    return Resolution(artifacts, fields)


def _artifact(repository: _Repository, layer: _Layer, context: Context) -> Artifact:
    digest = _digest(layer)
    url = f"{repository.url}/blobs/{digest}"
    renew = functools.partial(_authorize, url=repository.url, context=context)
    return Artifact(_ROLES[layer.kind], Remote(url, digest, digest, layer.size, repository.credential, renew=renew))


def _digest(layer: _Layer) -> str:
    try:
        return parse_digest(layer.digest)
    except InvalidNameError as error:
        raise PullError(f"the registry's manifest holds something that is {error.message}") from None


def _add_text(fields: dict[str, Any], kind: str, text: str) -> None:
    match kind:
        case "license":
            fields["license"] = (*fields.get("license", ()), text)
        case "params":
            fields["parameters"] = understood(text, dict[str, Any], "the model's params layer")
        case "messages":
            fields["messages"] = tuple(understood(text, list[_Message], "the model's messages layer"))
        case "prompt":
            fields.setdefault("template", text)
        case _:
            fields[kind] = text


async def _text(repository: _Repository, layer: _Layer, context: Context) -> str:
    digest = _digest(layer)
    url = f"{repository.url}/blobs/{digest}"
    response, body = await context.network.read(url, MAX_TEXT_BYTES, credential=repository.credential)
    if response.status != 200:
        raise PullError(f"the registry answered {response.status} for {digest}", status=response.status)
    require_digest(digest, f"sha256:{hashlib.sha256(body).hexdigest()}")
    return body.decode("utf-8", "replace")


async def _manifest(spec: Spec, context: Context) -> tuple[_Repository, _Manifest]:
    host, _, path = spec.location.partition("/")
    for base in (bases := _bases(host, context)):
        try:
            return await _manifest_from(f"{base}/v2/{path}", spec, context)
        except TransientError:
            if base == bases[-1]:
                raise
    raise AssertionError  # there is at least one base


def _bases(host: str, context: Context) -> list[str]:
    if host == DEFAULT_HOST and context.options.ollama_endpoint:
        return [context.options.ollama_endpoint.rstrip("/")]
    if not context.insecure:
        return [f"https://{host}"]
    local = urlsplit(f"//{host}").hostname in ("localhost", "127.0.0.1", "::1")
    return [f"http://{host}", f"https://{host}"] if local else [f"https://{host}", f"http://{host}"]


async def _manifest_from(url: str, spec: Spec, context: Context) -> tuple[_Repository, _Manifest]:
    target, headers = f"{url}/manifests/{spec.version}", {"Accept": ACCEPT}
    response, body = await context.network.read(target, MAX_TEXT_BYTES, headers=headers)
    credential = None
    if response.status == 401:
        credential = await _authorize(response, url, context)
        response, body = await context.network.read(target, MAX_TEXT_BYTES, headers=headers, credential=credential)
    if response.status != 200:
        raise _refused(response.status, spec)
    return _Repository(url, credential), understood(body, _Manifest, "the registry's manifest")


def _refused(status: int, spec: Spec) -> PullError:
    where = f"{spec.location}:{spec.version}"
    if status == 404:
        return PullError(f"pull model manifest: file does not exist ({where})", status=404)
    if status in (401, 403):
        return PullError(
            f"the registry does not let us read {where}; set registry_credentials for its host", status=status
        )
    return PullError(f"the registry answered {status} for {where}", status=status)


async def _authorize(response: aiohttp.ClientResponse, url: str, context: Context) -> Credential | None:
    """Answer a 401: a token, anonymous unless a login is configured for the very host that asks, or Basic."""
    offers = [offer.partition(" ") for offer in response.headers.getall("WWW-Authenticate", [])]
    scheme, _, rest = min(offers, key=lambda offer: offer[0].lower() != "bearer", default=("", "", ""))
    if scheme.lower() == "basic":
        login = _login(url, context)
        return Credential(origin_of(url), login.header) if login else None
    challenge = {name.lower(): quoted or plain for name, quoted, plain in _CHALLENGE.findall(rest)}
    realm = challenge.pop("realm", "")
    if scheme.lower() != "bearer" or not realm:
        return None
    query = urlencode({key: value for key, value in challenge.items() if key in ("service", "scope")})
    realm += ("&" if "?" in realm else "?") + query
    check_url(realm, context.network.policy)
    answer, body = await context.network.read(realm, MAX_TEXT_BYTES, credential=_login(realm, context))
    if answer.status != 200:
        raise PullError(f"no access token from {urlsplit(realm).hostname} ({answer.status})", status=answer.status)
    value = understood(body, dict[str, Any], "the registry's token")
    token = value.get("token") or value.get("access_token")
    return Credential(origin_of(url), f"Bearer {token}") if isinstance(token, str) else None


def _login(url: str, context: Context) -> Credential | None:
    logins = context.options.registry_credentials
    login = logins.get(host_and_port(url)) or logins.get(urlsplit(url).hostname or "")
    if login is None:
        return None
    return Credential(origin_of(url), "Basic " + base64.b64encode(login.encode()).decode())
