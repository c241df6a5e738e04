"""The JSON of our own routes. Values only."""

from __future__ import annotations

from typing import Any

import msgspec

from barrel_inference.kvcache.admin.content import NamespaceStats

EXPORTED = "x-exported"  # header of an export: what is in the archive, as JSON


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """``content`` is the text; ``add_special`` puts the model's own first token before it."""

    model: str
    content: str
    add_special: bool = False
    parse_special: bool = True
    keep_alive: Any = None


class Tokenized(msgspec.Struct):
    tokens: list[int]
    count: int


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    model: str
    tokens: list[int]
    keep_alive: Any = None


class Detokenized(msgspec.Struct):
    content: str


class PromptRequest(msgspec.Struct, kw_only=True):
    """A prompt of a model: text, or a conversation that its template writes."""

    model: str
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    keep_alive: Any = None


class Pinned(msgspec.Struct):
    tokens: int


class Unpinned(msgspec.Struct):
    was_pinned: bool


class ClearRequest(msgspec.Struct, kw_only=True):
    """Everything, or one namespace, what was not used for so long, what one tier holds."""

    namespace: str | None = None
    older_than_s: float | None = None
    tier: str | None = None


class VerifyRequest(msgspec.Struct, kw_only=True):
    tier: str | None = None


class Imported(msgspec.Struct, kw_only=True):
    """Objects of an archive: new ones, ones that were here already, ones that are damaged or none of ours. ``tokens``:
    of the prompt, from its beginning, that the first two hold."""

    objects: int
    bytes: int
    tokens: int
    present: int
    refused: int


class Tier(msgspec.Struct, kw_only=True):
    name: str
    kind: str
    quota_bytes: int
    used_bytes: int
    objects: int
    writable: bool


class Cache(msgspec.Struct, kw_only=True):
    tiers: list[Tier]
    namespaces: list[NamespaceStats]
    counters: dict[str, float]
    by_model: dict[str, dict[str, float]]
    by_tier: dict[str, dict[str, dict[str, float]]]  # by tier and model


class EditRequest(msgspec.Struct, kw_only=True):
    """An empty ``system`` or ``template`` removes it; ``unset`` names parameters to remove."""

    model: str
    parameters: dict[str, Any] = {}
    unset: list[str] = []
    system: str | None = None
    template: str | None = None


class Edited(msgspec.Struct, omit_defaults=True):
    model: str
    parameters: dict[str, Any]
    warning: str | None = None  # what was not taken as it was given


class GcRequest(msgspec.Struct, kw_only=True):
    dry_run: bool = False


class Garbage(msgspec.Struct):
    kind: str
    name: str
    freed_bytes: int


class Collected(msgspec.Struct):
    removed: list[Garbage]
    freed_bytes: int
    dry_run: bool


class Found(msgspec.Struct):
    models: list[dict[str, Any]]


class Health(msgspec.Struct, kw_only=True):
    """``status``: ok, starting or stopping."""

    status: str
    models_loaded: int
    requests_active: int
