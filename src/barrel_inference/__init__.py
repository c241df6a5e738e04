"""Barrel Inference: GGUF models through llama.cpp, whose KV state is never computed twice. Public names only.

import barrel_inference as bi

model = bi.load_model(model_path="model.gguf")
for chunk in model.stream("Once upon a time"):
    print(chunk.text, end="")
"""

from barrel_inference import errors, types
from barrel_inference.aio import AsyncModel, AsyncRuntime, AsyncStream
from barrel_inference.api import (
    ChatStream,
    Model,
    Runtime,
    Stream,
    cache,
    complete,
    load_model,
    model,
    models,
    runtime,
    start_tier,
    stream,
    unload,
)
from barrel_inference.chat import events
from barrel_inference.config import ContextOpts, ModelOpts, Policy, RuntimeConfig, TierSpec

__all__ = [
    "AsyncModel",
    "AsyncRuntime",
    "AsyncStream",
    "ChatStream",
    "ContextOpts",
    "Model",
    "ModelOpts",
    "Policy",
    "Runtime",
    "RuntimeConfig",
    "Stream",
    "TierSpec",
    "cache",
    "complete",
    "errors",
    "events",
    "load_model",
    "model",
    "models",
    "runtime",
    "start_tier",
    "stream",
    "types",
    "unload",
]
