"""Opening the KV store for a loaded model. Engine thread, once."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from barrel_inference.config import LoadOptions
from barrel_inference.engine.backend import Backend, BackendInfo, DecodeStatus, Slice
from barrel_inference.engine.checkpoints.checkpoints import Checkpoints, StoredCheckpoints
from barrel_inference.engine.checkpoints.restoring import Restorer, Touched
from barrel_inference.engine.checkpoints.saving import Saver
from barrel_inference.engine.checkpoints.selftest import remembered_verdict
from barrel_inference.errors import BarrelError, CacheError, TierError, TierMismatchError
from barrel_inference.kvcache import policy
from barrel_inference.kvcache.layout import Layout, detect
from barrel_inference.kvcache.namespace import Namespace
from barrel_inference.kvcache.store import Shape, Store
from barrel_inference.kvcache.tier import Tier
from barrel_inference.kvcache.transfer.reader import Reader
from barrel_inference.kvcache.transfer.writer import Writer

logger = logging.getLogger(__name__)

PROBE_TOKENS = 3


def open_checkpoints(
    backend: Backend,
    options: LoadOptions,
    *,
    need_room: Callable[[str, int], None],
    touched: Touched,
    clock: Callable[[], float],
) -> Checkpoints:
    """Learn the state layout (it decodes a few tokens), name the namespace, open the tiers, test once.

    What the cache cannot do for this model switches it off, and ``verdict`` says why. Raises TierUnusableError
    when the save tier is not writable, ConfigError for a wrong policy. ``need_room(tier, bytes)`` and
    ``touched(tier, keys)`` are called from other threads.
    """
    policy.check(options.policy)
    info = backend.info
    if not options.cache or not options.tiers:
        return Checkpoints(backend, "the cache is switched off")
    if info.vocab_only or info.embeddings or not info.has_memory:
        return Checkpoints(backend, "this model keeps no KV state")
    tiers = _open_tiers(options)
    save_tier = _save_tier(options, tiers)
    try:
        layout = learn_layout(backend)
        namespace = name(options, info, layout)
        folder = (save_tier or tiers[0]).folder(namespace.digest().hex())
        namespace.write(folder)
        verdict = remembered_verdict(backend, layout, folder)
    except (BarrelError, OSError) as error:
        return Checkpoints(backend, f"the KV state cannot be used: {error}")
    if verdict != "exact":
        return Checkpoints(backend, verdict)
    return assemble(
        backend, options, tiers, layout, namespace.digest(), need_room=need_room, touched=touched, clock=clock
    )


def assemble(
    backend: Backend,
    options: LoadOptions,
    tiers: list[Tier],
    layout: Layout,
    namespace: bytes,
    *,
    need_room: Callable[[str, int], None],
    touched: Touched,
    clock: Callable[[], float],
) -> StoredCheckpoints:
    """Put the parts together over opened tiers (tests pass slow or failing ones)."""
    save_tier = _save_tier(options, tiers)
    shape = Shape(layout.base is not None, layout.n_swa if layout.window else 0, layout.has_state)
    store = Store(tiers, save_tier, namespace, shape)
    reader = Reader(store, layout, clock)
    max_tokens = options.context_size or backend.info.n_ctx
    restorer = Restorer(backend, store, reader, layout, touched, max_tokens)
    saver = writer = None
    if save_tier is not None:
        writer = Writer(store, save_tier, layout, need_room=need_room, is_reading=lambda: reader.active > 0)
        saver = Saver(backend, store, writer, layout, options.policy, max_tokens)
    return StoredCheckpoints(
        backend,
        store,
        layout,
        options.policy,
        exact=options.exact,
        restorer=restorer,
        reader=reader,
        saver=saver,
        writer=writer,
    )


def learn_layout(backend: Backend) -> Layout:
    """From the state of a few tokens in sequence 0, which must be empty and is left so."""
    tokens = tuple(token % backend.info.n_vocab for token in range(1, 1 + PROBE_TOKENS))
    try:
        n_batch = min(PROBE_TOKENS, backend.info.n_batch)
        for start in range(0, len(tokens), n_batch):
            piece = Slice(0, start, tokens[start : start + n_batch], want_logits=False)
            if backend.decode([piece], None) is not DecodeStatus.OK:
                raise CacheError("a few tokens could not be decoded to learn the state layout")
        size = backend.state_size(0)
        blob = memoryview(bytearray(size))
        n = backend.state_read(0, blob)
        return detect(blob[:n], n_swa=backend.info.n_swa)
    finally:
        backend.seq_remove(0, 0, -1)


def name(options: LoadOptions, info: BackendInfo, layout: Layout) -> Namespace:
    return Namespace(
        fingerprint=options.fingerprint,
        architecture=info.architecture,
        quant_type=options.quant_type or info.quant_type,
        quant_bits=info.quant_bits if options.quant_bits is None else options.quant_bits,
        lora=tuple((sha256, scale) for _, scale, sha256 in options.lora),
        type_k=info.type_k,
        type_v=info.type_v,
        n_layer=info.n_layer,
        layout=msgspec.json.encode(layout).decode(),
        n_swa=info.n_swa,
        flash_attn=info.flash_attn,
        rope=info.rope,
        build=info.build,
        ctx_params_hash=options.ctx_params_hash or "",
    )


def _open_tiers(options: LoadOptions) -> list[Tier]:
    """All tiers that can be used; only the save tier must be."""
    tiers: list[Tier] = []
    for spec in options.tiers:
        try:
            tiers.append(Tier(spec))
        except TierError as error:
            if spec.name == options.save_tier:
                raise
            logger.warning("%s", error)
    return tiers


def _save_tier(options: LoadOptions, tiers: list[Tier]) -> Tier | None:
    if options.save_tier is None:
        return None
    for tier in tiers:
        if tier.name == options.save_tier:
            return tier
    raise TierMismatchError(f"tier {options.save_tier} is not among the model's tiers", tier=options.save_tier)
