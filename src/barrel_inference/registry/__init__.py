"""Installed models: where they come from, what they are called, what belongs to whom. ``Registry`` is the door;
``registry.gguf.read`` reads one file's metadata."""

from barrel_inference.registry.manifest import File, Manifest
from barrel_inference.registry.registry import Located, Registry
from barrel_inference.registry.store import Broken, Listing

__all__ = ["Broken", "File", "Listing", "Located", "Manifest", "Registry"]
