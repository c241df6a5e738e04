"""The runtime in asyncio: the one implementation, on which ``api`` puts a blocking face."""

from barrel_inference.aio.model import AsyncModel
from barrel_inference.aio.runtime import AsyncRuntime
from barrel_inference.aio.stream import AsyncStream

__all__ = ["AsyncModel", "AsyncRuntime", "AsyncStream"]
