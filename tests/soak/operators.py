"""What else happens to a server: workers die, models are unloaded, caches cleared, models pulled, copied, removed and
collected. Each operator goes on until it is cancelled; all but the killer expect every answer to be a good one."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from psutil import NoSuchProcess

from tests.registry.weights import model
from tests.soak.asking import RETRY_STATUSES, Asker
from tests.soak.daemon import SHAKEN, Daemon
from tests.soak.tally import Tally
from tests.support.hub import Fault, Hub

PULLED = tuple(f"soak{number}" for number in range(4))
EMBEDDED = ("the old mill", "rain came over the hill", "a long green book")
PULLED_BYTES = 300_000
DROP_AT = 100_000


def offer(hub: Hub) -> None:
    """What can be pulled. Two of the models have the same weights."""
    for number, name in enumerate(PULLED):
        layers = [("model", model(PULLED_BYTES, seed=number // 2)), ("template", b"{{ .Prompt }}%d" % number)]
        hub.ollama(f"library/{name}", layers)


@dataclass(frozen=True)
class Operators:
    """``spared``: the worker that nobody kills. ``unloaded``: models that are, now and then."""

    asker: Asker
    daemon: Daemon
    hub: Hub
    tally: Tally
    spared: int
    unloaded: tuple[str, ...]

    def all(self, seed: int) -> list[Coroutine[Any, Any, None]]:
        works = (self.kills, self.unloads, self.clears, self.embeds, self.pulls, self.collects)
        return [work(random.Random(f"{seed}/{work.__name__}")) for work in works]

    async def kills(self, rng: random.Random) -> None:
        while True:
            await self.tally.more_replies(rng.randint(10, 40))
            victims = [each for each in self.daemon.workers() if each.pid != self.spared]
            if victims:
                try:
                    rng.choice(victims).kill()
                    self.tally.done("workers killed")
                except NoSuchProcess:
                    continue  # it was being unloaded

    async def unloads(self, rng: random.Random) -> None:
        while True:
            await self.tally.more_replies(rng.randint(15, 50))
            await self._good(
                "models unloaded", "POST", "/api/generate", {"model": rng.choice(self.unloaded), "keep_alive": 0}
            )

    async def clears(self, rng: random.Random) -> None:
        while True:
            await self.tally.more_replies(rng.randint(30, 90))
            found = await self._good("caches verified", "POST", "/api/cache/verify", {})
            if found and found["corrupt"]:
                self.tally.fault(f"the cache has corrupt objects: {found}")
            await self._good("caches cleared", "POST", "/api/cache/clear", {})

    async def embeds(self, rng: random.Random) -> None:
        """The same texts have the same vectors, in both dialects."""
        known: Any = None
        while True:
            await self.tally.more_replies(rng.randint(2, 8))
            body = {"model": SHAKEN, "input": EMBEDDED}
            status, answer = await self.asker.call("POST", rng.choice(["/api/embed", "/v1/embeddings"]), body)
            if status in RETRY_STATUSES:
                self.tally.done("embeddings refused")
                continue
            if status != 200:
                self.tally.fault(f"embeddings: {status} {answer}")
                continue
            self.tally.done("embeddings made")
            vectors = answer.get("embeddings") or [each["embedding"] for each in answer["data"]]
            if vectors != (known := known or vectors):
                self.tally.fault("embeddings: other vectors than the first time")

    async def pulls(self, rng: random.Random) -> None:
        """A pull that is left, one whose connection drops, one from end to end; then copies and removals."""
        while True:
            await self.tally.more_replies(rng.randint(5, 20))
            name = rng.choice(PULLED)
            if rng.random() < 0.4:
                await self.asker.begin("/api/pull", {"model": name}, rng.randint(1, 3))
                self.tally.done("pulls left")
            if rng.random() < 0.4:
                blobs = [path for path in self.hub.resources if f"/{name}/blobs/" in path]
                self.hub.resources[rng.choice(blobs)].faults.append(Fault(drop_at=DROP_AT))
            await self._good("models pulled", "POST", "/api/pull", {"model": name, "stream": False})
            await self._good("models copied", "POST", "/api/copy", {"source": name, "destination": f"{name}-copy"})
            await self._listed(f"{name}-copy:latest")
            for each in rng.sample([name, f"{name}-copy"], rng.randint(1, 2)):
                await self._good("models removed", "DELETE", "/api/delete", {"model": each})

    async def collects(self, rng: random.Random) -> None:
        """Beside the pulls, whose files must survive it."""
        while True:
            await self.tally.more_replies(rng.randint(3, 15))
            await self._good("garbage collected", "POST", "/api/gc", {})

    async def _listed(self, name: str) -> None:
        listed = await self._good("lists", "GET", "/api/tags")
        if listed and name not in [each["name"] for each in listed["models"]]:
            self.tally.fault(f"{name} is not listed")

    async def _good(self, what: str, method: str, path: str, body: Any = None) -> Any:
        status, answer = await self.asker.call(method, path, body)
        self.tally.done(what)
        if status != 200 or (answer and "error" in answer):
            self.tally.fault(f"{what}: {method} {path} {body} was answered with {status} {answer}")
        return answer
