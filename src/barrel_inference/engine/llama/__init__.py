"""llama.cpp behind the Backend seam: the only package that imports the binding."""

from barrel_inference.engine.llama.backend import LlamaBackend
from barrel_inference.engine.llama.binding import features

__all__ = ["LlamaBackend", "features"]
