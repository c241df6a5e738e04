"""The stores of one models root, handed around together. They belong to the Registry."""

from __future__ import annotations

from typing import NamedTuple

from barrel_inference.config import RegistryOpts
from barrel_inference.registry.blobs import Blobs
from barrel_inference.registry.files import Root
from barrel_inference.registry.store import Store


class Ground(NamedTuple):
    root: Root
    blobs: Blobs
    store: Store
    options: RegistryOpts
