"""Objects put into tiers by hand: what the store, its lookup and its reader find."""

from __future__ import annotations

from collections.abc import Sequence

from barrel_inference.engine.backend import Slice
from barrel_inference.kvcache.chain import block_keys, pack_tokens, rest_key, root
from barrel_inference.kvcache.layout import Layout, detect
from barrel_inference.kvcache.record import Name, Provenance, Record, encode, payload_hash
from barrel_inference.kvcache.store import Shape, Store
from barrel_inference.kvcache.tier import Tier
from tests.kvcache.fake_backend import FakeBackend

NAMESPACE = b"\x07" * 32
PLAIN = Shape(has_blocks=True, n_swa=0, has_state=False)


def layout() -> Layout:
    backend = FakeBackend()
    backend.decode([Slice(0, 0, (1, 2, 3), want_logits=False)], None)
    blob = memoryview(bytearray(backend.state_size(0)))
    backend.state_read(0, blob)
    return detect(blob, n_swa=0)


ROW_BYTES = layout().bytes_per_token


def payload(tokens: Sequence[int]) -> bytes:
    """Rows that say which token they are of."""
    return b"".join(token.to_bytes(4, "little").ljust(ROW_BYTES, b"r") for token in tokens)


def records(tokens: Sequence[int], provenance: Provenance = "p", *, salt: str = "") -> list[Record]:
    """Of the blocks of ``tokens``, and of the tail when they end inside one."""
    packed = pack_tokens(tokens)
    keys = [root(NAMESPACE, salt), *block_keys(root(NAMESPACE, salt), packed)]
    found: list[Record] = []
    for start in range(0, len(tokens), 64):
        own = packed[4 * start : 4 * (start + 64)]
        parent = keys[start // 64]
        is_block = len(own) == 256
        data = payload(tokens[start : start + 64])
        found.append(
            Record(
                kind="block" if is_block else "tail",
                provenance=provenance,
                namespace=NAMESPACE,
                key=keys[start // 64 + 1] if is_block else rest_key("tail", parent, own),
                parent=parent,
                first=start,
                tokens=own,
                created_us=1,
                cost_us=64_000,
                payload_bytes=len(data),
                payload_hash=payload_hash([memoryview(data)]),
            )
        )
    return found


def put(tier: Tier, tokens: Sequence[int], provenance: Provenance = "p", *, salt: str = "") -> list[Name]:
    made = records(tokens, provenance, salt=salt)
    for record in made:
        data = payload(tokens[record.first : record.first + record.count])
        tier.put(NAMESPACE.hex(), record.name, [encode(record), data])
    return [record.name for record in made]


def store(*tiers: Tier, shape: Shape = PLAIN) -> Store:
    """Saves go to the first."""
    return Store(tiers, tiers[0] if tiers else None, NAMESPACE, shape)
