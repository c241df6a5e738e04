"""BackendInfo of a loaded model: what the GGUF says and what the context became."""

from __future__ import annotations

import re
from typing import Any

from barrel_inference.config import LoadOptions
from barrel_inference.engine.backend import BackendInfo
from barrel_inference.engine.llama.binding import build, lib
from barrel_inference.engine.llama.weights import Weights

_BITS = re.compile(r"(\d+)")
_FTYPES = {
    value: name.removeprefix("LLAMA_FTYPE_").removeprefix("MOSTLY_").removeprefix("ALL_").lower()
    for name, value in vars(lib).items()
    if name.startswith("LLAMA_FTYPE_") and isinstance(value, int)
}


def read_info(weights: Weights, options: LoadOptions, *, context: Any, flash_attn: bool) -> BackendInfo:
    model, opts = weights.pointer, options.context_opts
    n_ctx_train = int(lib.llama_model_n_ctx_train(model))
    quant_type = options.quant_type or _FTYPES.get(int(lib.llama_model_ftype(model)) & ~1024, "unknown")
    template = lib.llama_model_chat_template(model, None)
    n_layer = int(lib.llama_model_n_layer(model))
    n_gpu_layers = offloaded(options.model_opts.n_gpu_layers, n_layer, bool(lib.llama_supports_gpu_offload()))
    warnings = list(weights.warnings)
    if context is not None and opts.n_ctx > n_ctx_train > 0:
        warnings.append(f"n_ctx {opts.n_ctx} is larger than the {n_ctx_train} tokens the model was trained on")
    return BackendInfo(
        architecture=weights.metadata("general.architecture") or "",
        description=weights.description(),
        n_ctx=opts.n_ctx,
        n_ctx_train=n_ctx_train,
        n_batch=_n_batch(context, options),
        n_ubatch=int(lib.llama_n_ubatch(context)) if context else opts.n_batch,
        n_seq_max=opts.n_seq_max,
        n_vocab=int(lib.llama_vocab_n_tokens(weights.vocab)),
        n_embd=int(lib.llama_model_n_embd(model)),
        n_layer=n_layer,
        n_gpu_layers=n_gpu_layers,
        n_params=int(lib.llama_model_n_params(model)),
        size_bytes=int(lib.llama_model_size(model)),
        n_swa=int(lib.llama_model_n_swa(model)),
        is_recurrent=bool(lib.llama_model_is_recurrent(model)),
        is_hybrid=bool(lib.llama_model_is_hybrid(model)),
        has_memory=context is not None and bool(lib.llama_get_memory(context)),
        vocab_only=options.model_opts.vocab_only,
        embeddings=opts.embeddings,
        flash_attn=flash_attn,
        attends_on_cpu=not n_gpu_layers,
        type_k=opts.type_k,
        type_v=opts.type_v,
        rope=_rope(weights, options),
        quant_type=quant_type,
        quant_bits=options.quant_bits or _quant_bits(quant_type),
        bos_token=_token_text(weights, lib.llama_vocab_bos(weights.vocab)),
        eos_token=_token_text(weights, lib.llama_vocab_eos(weights.vocab)),
        chat_template=template.decode(errors="replace") if template else None,
        build=build(),
        warnings=tuple(warnings),
    )


def offloaded(wanted: int, n_layer: int, can_offload: bool) -> int:
    """Layers that are on a GPU, the output among them, as llama.cpp counts."""
    if not can_offload:
        return 0
    return n_layer + 1 if wanted < 0 else min(wanted, n_layer + 1)


def _n_batch(context: Any, options: LoadOptions) -> int:
    """What may be decoded at once: the context may have been given room for more than was asked for."""
    opts = options.context_opts
    if context is None:
        return opts.n_batch
    n_batch = int(lib.llama_n_batch(context))
    return n_batch if opts.embeddings else min(opts.n_batch, n_batch)


def _rope(weights: Weights, options: LoadOptions) -> str:
    """Every RoPE parameter that shapes KV bytes: the model's own and our overrides, in a fixed order."""
    opts = options.context_opts
    own = {key: weights.metadata(key) for key in weights.metadata_keys() if ".rope." in key}
    lines = [f"type={lib.llama_model_rope_type(weights.pointer)}", *(f"{key}={own[key]}" for key in sorted(own))]
    lines += [
        f"override.freq_base={opts.rope_freq_base!r}",
        f"override.freq_scale={opts.rope_freq_scale!r}",
        f"override.scaling={opts.rope_scaling}",
        f"override.yarn_orig_ctx={opts.yarn_orig_ctx}",
    ]
    return "\n".join(lines)


def _quant_bits(quant_type: str) -> float:
    found = _BITS.search(quant_type)
    return float(found.group(1)) if found else 0.0


def _token_text(weights: Weights, token: int) -> str:
    text = lib.llama_vocab_get_text(weights.vocab, token) if token >= 0 else None
    return text.decode(errors="replace") if text else ""
