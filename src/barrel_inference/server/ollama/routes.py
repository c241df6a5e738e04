"""Ollama's API as one list of operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from barrel_inference.registry import Registry
from barrel_inference.server.http.operation import Operation
from barrel_inference.server.ollama import account
from barrel_inference.server.ollama.generating import Generating
from barrel_inference.server.ollama.installing import Installing
from barrel_inference.server.ollama.listing import Listing
from barrel_inference.server.service import ModelService


def routes(
    service: ModelService, registry: Registry | None, configured: Mapping[str, Mapping[str, Any]], *, local_files: bool
) -> list[Operation]:
    """Without a registry: what is configured can be asked, nothing installed."""
    found = Listing(service.catalog, service.pool).operations() + Generating(service).operations()
    found += account.operations()
    if registry is not None:
        found += Installing(registry, configured, local_files=local_files).operations()
    return found
