"""What the registry knows of one installed model: the manifest, its JSON, and how a GGUF's metadata becomes one.
Pure values; a manifest is replaced, never changed."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from barrel_inference.errors import ManifestError
from barrel_inference.registry.gguf import GgufInfo
from barrel_inference.registry.names import PLAIN, ModelName, is_shortest, parse_digest

DEFAULT_CONTEXT = 4096
MAX_MANIFEST_BYTES = 16 << 20
MAX_LABEL_CHARS = 64


class File(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One more file a model needs: a shard, a projector, an adapter."""

    digest: str
    blob_path: str
    size_bytes: int
    scale: float = 1.0  # adapters only


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Everything needed to list, show and load the model without opening its file. ``extra`` keeps unknown fields."""

    name: str
    tag: str
    spec: str
    digest: str
    blob_path: str
    size_bytes: int  # of all shards
    format: str = "gguf"
    architecture: str = ""
    family: str = ""
    parameter_size: str = ""
    quantization: str = ""
    context_size: int = 0
    embedding_length: int = 0
    chat_template: str | None = None
    loader: dict[str, Any] = {}
    modified_at: str = ""
    is_embedding: bool = False
    shards: tuple[File, ...] = ()  # all of a split model's files, the first one included
    projector: File | None = None
    adapters: tuple[File, ...] = ()
    system: str | None = None
    template: str | None = None  # overrides chat_template; Jinja or Ollama's Go template
    parameters: dict[str, Any] = {}
    messages: tuple[dict[str, Any], ...] = ()
    license: tuple[str, ...] = ()
    origin: dict[str, Any] = {}  # the source's own idea of the version: etag, size, commit
    extra: dict[str, Any] = {}

    @property
    def model_name(self) -> ModelName:
        return ModelName(self.name, self.tag)

    @property
    def weights(self) -> tuple[File, ...]:
        """The model's own file or shards."""
        return self.shards or (File(digest=self.digest, blob_path=self.blob_path, size_bytes=self.size_bytes),)

    @property
    def files(self) -> tuple[File, ...]:
        """Every file the model needs, the main one first."""
        return (*self.weights, *((self.projector,) if self.projector else ()), *self.adapters)

    @property
    def digests(self) -> tuple[str, ...]:
        more = (*self.shards, *self.adapters, *((self.projector,) if self.projector else ()))
        return (self.digest, *[file.digest for file in more if file.digest != self.digest])

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def capabilities(self) -> tuple[str, ...]:
        if self.is_embedding:
            return ("embedding",)
        return capabilities(self.template or self.chat_template or "", sees=self.projector is not None)


def capabilities(template: str, *, sees: bool = False) -> tuple[str, ...]:
    """Ollama's words: completion, then vision, tools, insert, thinking as the template shows."""
    lower = template.lower()
    found = {
        "vision": sees,
        "tools": "tools" in lower and ("{{" in template or "{%" in template),
        "insert": ".Suffix" in template,
        "thinking": any(word in lower for word in (".thinking", "enable_thinking", "<think>", "reasoning_content")),
    }
    return ("completion", *(name for name, present in found.items() if present))


_FIELDS = frozenset(field.name for field in msgspec.structs.fields(Manifest)) - {"extra"}
_DECODER = msgspec.json.Decoder(Manifest)


def decode(content: bytes) -> Manifest:
    """A manifest that is valid in itself; ``ManifestError`` says what is wrong."""
    try:
        manifest = _decode_known(content) or _decode_any(content)
        _check(manifest)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ManifestError(str(error) if content.strip(b"\0 \n") else "empty") from None
    return manifest


def _check(manifest: Manifest) -> None:
    is_one_file = not (manifest.shards or manifest.adapters or manifest.projector)
    if is_one_file and PLAIN.fullmatch(f"{manifest.name} {manifest.tag} {manifest.digest}"):
        return
    for digest in manifest.digests:
        parse_digest(digest)
    if not is_shortest(manifest.model_name):
        raise ManifestError(f"it names {manifest.model_name}, which is not in shortest form")


def _decode_known(content: bytes) -> Manifest | None:
    """None for one with unknown fields, ``extra`` among them, or with anything wrong: most have none, and a thousand
    must be read in milliseconds."""
    try:
        manifest = _DECODER.decode(content)
    except msgspec.ValidationError:
        return None
    return None if manifest.extra else manifest


def _decode_any(content: bytes) -> Manifest:
    value = msgspec.json.decode(content)
    if not isinstance(value, dict):
        raise ManifestError("not a JSON object")
    extra = {key: value[key] for key in value.keys() - _FIELDS}
    return msgspec.convert({**{key: value[key] for key in value.keys() & _FIELDS}, "extra": extra}, Manifest)


def encode(manifest: Manifest) -> bytes:
    """As it stands on disk; ``ManifestError`` for what could not be read back."""
    value = {"format": manifest.format, **msgspec.to_builtins(manifest)}  # also where it is the default
    try:
        content = msgspec.json.format(msgspec.json.encode({**value.pop("extra", {}), **value}), indent=1) + b"\n"
    except (UnicodeEncodeError, OverflowError) as error:
        raise ManifestError(f"{manifest.model_name} cannot be written down: {error}") from None
    if len(content) > MAX_MANIFEST_BYTES:
        raise ManifestError(
            f"the texts of {manifest.model_name} are too long: {len(content)} bytes, the limit is {MAX_MANIFEST_BYTES}"
        )
    return content


def describe(info: GgufInfo, max_context: int) -> dict[str, Any]:
    """The manifest fields that a GGUF's own metadata determine."""
    n_ctx = min(info.context_length or DEFAULT_CONTEXT, max_context)
    return {
        "size_bytes": info.size_bytes,
        "architecture": _label(info.architecture),
        "family": _label(info.family),
        "parameter_size": _label(info.parameter_size),
        "quantization": info.quantization,
        "context_size": info.context_length,
        "embedding_length": info.embedding_length,
        "chat_template": info.chat_template,
        "is_embedding": info.is_embedding,
        "loader": {
            "n_gpu_layers": 0,
            "n_ctx": n_ctx,
            "n_batch": 512,
            "quant_type": info.quantization,
            "quant_bits": info.quant_bits,
        },
    }


def _label(text: str) -> str:
    """What a stranger's file calls itself, fit for a column."""
    return "".join(char for char in text[:MAX_LABEL_CHARS] if char.isprintable())


def timestamp(now: float) -> str:
    """Seconds since the epoch as RFC 3339 in UTC."""
    return datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
