"""What info() and the counters say of a worker."""

from __future__ import annotations

import os

import msgspec

from barrel_inference.chat.templates.fallbacks import pick
from barrel_inference.config import LoadOptions
from barrel_inference.engine.backend import Backend
from barrel_inference.engine.checkpoints import Checkpoints
from barrel_inference.engine.engine import Engine
from barrel_inference.types import ModelInfo
from barrel_inference.worker.memory import PsutilMemory
from barrel_inference.worker.messages import Counters

CHAT_MARKERS = ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>")


class Facts:
    """Any thread."""

    def __init__(self, options: LoadOptions, backend: Backend, store: Checkpoints, engine: Engine) -> None:
        self._backend = backend
        self._engine = engine
        self._store = store
        self._memory = PsutilMemory()
        self._fixed = _fixed_facts(options, backend, store)

    def info(self) -> ModelInfo:
        snapshot = self._engine.snapshot()
        weights = self._backend.weights_in_memory()
        return msgspec.structs.replace(
            self._fixed,
            sequences_free=snapshot.sequences_free,
            queued=snapshot.queued,
            running=snapshot.running,
            last_cache=snapshot.last_cache,
            resident_bytes=self._memory.resident_bytes(os.getpid()),
            weights_resident_bytes=weights.resident_bytes,
            warnings=self._fixed.warnings + weights.warnings,
        )

    def counters(self) -> Counters:
        return Counters({**self._engine.counters(), **self._store.counters}, self.info())


def _fixed_facts(options: LoadOptions, backend: Backend, store: Checkpoints) -> ModelInfo:
    info, warnings = backend.info, backend.info.warnings
    chat_template = pick(info.chat_template, _markers(backend))
    if info.chat_template is None and not info.embeddings:
        warnings = (*warnings, f"the model brings no chat template: the built-in {chat_template!r} is used")
    return ModelInfo(
        id=options.id,
        phase="ready",
        backend=options.backend,
        model_path=options.model_path,
        fingerprint=options.fingerprint,
        namespace=store.namespace,
        architecture=info.architecture,
        description=info.description,
        n_ctx=info.n_ctx,
        n_ctx_train=info.n_ctx_train,
        n_vocab=info.n_vocab,
        n_embd=info.n_embd,
        n_params=info.n_params,
        size_bytes=info.size_bytes,
        n_seq_max=info.n_seq_max,
        kv_bytes_per_token=store.bytes_per_token,
        cache_layout=store.layout,
        memory_path=str(store.memory_folder or ""),
        memory_bytes=store.memory_bytes,
        cache_verdict=store.verdict,
        vocab_only=info.vocab_only,
        embeddings=info.embeddings,
        chat_template=chat_template,
        bos_token=info.bos_token,
        eos_token=info.eos_token,
        warnings=warnings,
        loader={**msgspec.to_builtins(options.model_opts), **_given_markers(options)},
    )


def _given_markers(options: LoadOptions) -> dict[str, tuple[str, str]]:
    """Those that take the place of what the chat template shows; the runtime's side makes the prompts."""
    given = {"tool_call_markers": options.tool_call_markers, "thinking_markers": options.thinking_markers}
    return {name: markers for name, markers in given.items() if markers is not None}


def _markers(backend: Backend) -> frozenset[str]:
    """The chat markers that are one control token in this vocabulary."""
    found = []
    for marker in CHAT_MARKERS:
        tokens = backend.tokenize(marker.encode(), add_special=False, parse_special=True)
        if len(tokens) == 1 and backend.is_control(tokens[0]):
            found.append(marker)
    return frozenset(found)
