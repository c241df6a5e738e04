"""Looking at what tiers hold and steering it: statistics, clear, scrub, pins. Owns nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from barrel_inference.errors import CacheError, NotStoredError, os_reason
from barrel_inference.files import read_small
from barrel_inference.kvcache import lookup
from barrel_inference.kvcache.chain import pack_tokens, rest_key, root
from barrel_inference.kvcache.lookup import Found
from barrel_inference.kvcache.record import VERSION, CorruptError, Name, Record, decode, payload_hash, short
from barrel_inference.kvcache.store import Store, read_header
from barrel_inference.kvcache.tier import NS_HEX, Stored, Tier


class NamespaceStats(msgspec.Struct, frozen=True):
    """One model's objects in one tier. ``about``: what its ns.json says."""

    tier: str
    namespace: str
    objects: int
    bytes: int
    by_kind: dict[str, int]
    about: dict[str, object]


class Removed(msgspec.Struct, frozen=True):
    objects: int
    bytes: int


class Scrubbed(msgspec.Struct, frozen=True):
    objects: int
    bytes: int
    corrupt: int


def stats(tiers: Iterable[Tier]) -> list[NamespaceStats]:
    return [_stats(tier, namespace) for tier in tiers for namespace in tier.namespaces()]


def _stats(tier: Tier, namespace: str) -> NamespaceStats:
    by_kind: dict[str, int] = {}
    objects = n_bytes = 0
    for one in tier.objects(namespace):
        by_kind[one.name.kind] = by_kind.get(one.name.kind, 0) + 1
        objects += 1
        n_bytes += one.allocated
    return NamespaceStats(tier.name, namespace, objects, n_bytes, by_kind, _about(tier, namespace))


def _about(tier: Tier, namespace: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(read_small(tier.folder(namespace) / "ns.json"), type=dict[str, object])
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return {}


def clear(tiers: Iterable[Tier], *, namespace: str | None = None, older_than: float | None = None) -> Removed:
    """Remove all objects, or those of one namespace (a hex prefix of at least 8 digits is enough), or those neither
    written nor hit since ``older_than`` (seconds since 1970; pinned ones stay), and what is remembered of what was
    written. Readers that race see a miss."""
    if namespace is not None and len(namespace) < 8:
        raise CacheError(f"namespace {namespace!r} is too short: give at least 8 hex digits")
    objects = n_bytes = 0
    for tier in tiers:
        pinned = tier.pinned() if older_than is not None else frozenset()
        for one in list(tier.objects()):
            if namespace is not None and not one.namespace.startswith(namespace[:NS_HEX]):
                continue
            if older_than is not None and (one.used_at >= older_than or one.name.key in pinned):
                continue
            n_bytes += tier.remove(one.namespace, one.name)
            objects += 1
        for folder in tier.namespaces():
            if namespace is None or folder.startswith(namespace[:NS_HEX]):
                tier.forget(folder, older_than)
    return Removed(objects, n_bytes)


def verify(tiers: Iterable[Tier]) -> Scrubbed:
    """Read every object of this format and prove it; what is corrupt goes to quarantine."""
    objects = n_bytes = corrupt = 0
    for tier, one in _of_this_version(tiers):
        try:
            data = read_whole(tier, one.namespace, one.name)
        except CorruptError:
            tier.quarantine(one.namespace, one.name)
            corrupt += 1
        except (OSError, MemoryError):
            continue
        else:
            n_bytes += len(data)
        objects += 1
    return Scrubbed(objects, n_bytes, corrupt)


def _of_this_version(tiers: Iterable[Tier]) -> Iterator[tuple[Tier, Stored]]:
    """Another version of the program may share the directory."""
    for tier in tiers:
        for namespace in tier.namespaces():
            if _about(tier, namespace).get("record_version", VERSION) == VERSION:
                yield from ((tier, one) for one in tier.objects(namespace))


def read_whole(tier: Tier, namespace: str, name: Name) -> memoryview:
    """One object file, proven; CorruptError or OSError."""
    record, size = read_header(tier, namespace, name), tier.size(namespace, name)
    if size != record.header_bytes + record.payload_bytes:  # before memory is taken for it
        raise CorruptError("the object has a wrong length")
    data = memoryview(bytearray(size))
    n = tier.read(namespace, name, [data])
    prove(data[:n], namespace, name)
    return data[:n]


def prove(data: memoryview, namespace: str, name: Name) -> Record:
    """Its header; CorruptError unless ``data`` is a whole object of that name."""
    record = decode(data)
    payload = data[len(data) - record.payload_bytes :] if record.payload_bytes else data[:0]
    if record.name != name or record.namespace.hex()[:NS_HEX] != namespace:
        raise CorruptError("the object is not what its name says")
    if len(data) != record.header_bytes + record.payload_bytes or payload_hash([payload]) != record.payload_hash:
        raise CorruptError("the payload is damaged")
    return record


def found(store: Store, tokens: Sequence[int], salt: str = "") -> Found:
    """All that is stored of a prompt; NotStoredError when nothing is."""
    held = lookup.find(store, tokens, salt=salt, limit=lambda at: at)
    if not held.length:
        raise NotStoredError("nothing of this prompt is stored: run it first")
    return held


def pin(store: Store, tokens: Sequence[int], *, salt: str = "") -> int:
    """Keep what is stored of a prompt longer than anything else; tokens pinned. CacheError when there is nothing."""
    held = found(store, tokens, salt)
    for tier, names in held.names().items():
        try:
            tier.pin(_pin_name(store, tokens, salt), sorted({name.key for name in names}))
        except OSError as error:
            raise CacheError(f"cannot pin in tier {tier.name}: {os_reason(error)}") from error
    return held.length


def unpin(store: Store, tokens: Sequence[int], *, salt: str = "") -> bool:
    """Whether the prompt was pinned."""
    removed = [tier.unpin(_pin_name(store, tokens, salt)) for tier in store.tiers]
    return any(removed)


def _pin_name(store: Store, tokens: Sequence[int], salt: str) -> str:
    return short(rest_key("pin", root(store.namespace, salt), pack_tokens(tokens)))
