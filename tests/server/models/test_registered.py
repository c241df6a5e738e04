"""A manifest as an entry: what of it counts when it is loaded."""

from __future__ import annotations

from barrel_inference.registry.manifest import Manifest
from barrel_inference.server.models.registered import from_manifest

PULLED = Manifest(
    name="a",
    tag="latest",
    spec="ollama://a",
    digest=f"sha256:{'0' * 64}",
    blob_path="/blobs/a",
    size_bytes=1,
    context_size=32768,
    loader={"n_ctx": 4096, "n_batch": 256, "type_k": "q8_0"},
)


def test_the_cap_of_the_day_it_was_pulled_does_not_hold_for_ever() -> None:
    """Or ``serve --ctx`` would do nothing for it."""
    entry = from_manifest(PULLED)
    assert entry.load["context_opts"] == {"n_batch": 256, "type_k": "q8_0"}
    assert entry.context_size == 32768
