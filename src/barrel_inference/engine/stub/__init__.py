"""The backend without weights."""

from barrel_inference.engine.stub.backend import StubBackend

__all__ = ["StubBackend"]
