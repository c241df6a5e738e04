"""The tiers of one runtime: those that were started by name, and the automatic one, a private directory on tmpfs that
is made at the first load and removed at the end.

    <tmpfs>/barrel-inference-<uid>/<pid>-<random>/        the automatic tier
    <tmpfs>/barrel-inference-<uid>/<pid>-<random>.lock    flocked while its runtime lives: unlocked ones are swept

Owned by the runtime's event loop; the janitor that keeps them under their quotas has a thread of its own.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from barrel_inference.config import RuntimeConfig, TierSpec
from barrel_inference.errors import ConfigError, TierMismatchError, TierUnknownError, TierUnusableError, os_reason
from barrel_inference.kvcache.admin import pressure
from barrel_inference.kvcache.admin.janitor import Janitor, Limits
from barrel_inference.kvcache.tier import Tier
from barrel_inference.options import nearest
from barrel_inference.types import TierInfo, TierKind
from barrel_inference.worker.memory import MemoryReader

AUTOMATIC = "ram"  # the automatic tier's name
MIN_TMPFS_BYTES = 256 << 20  # containers often have 64 MB, too small for one long prompt
TMPFS = "/dev/shm"
_SPEED = {"ram": 0, "ram_file": 1, "disk": 2}

_log = logging.getLogger(__name__)


class Tiers:
    """``on_room(tier)`` is called from the janitor's thread when it has dealt with a full tier."""

    def __init__(
        self,
        config: RuntimeConfig,
        memory: MemoryReader,
        *,
        on_room: Callable[[str], None] = lambda tier: None,
        memory_pressure: pressure.Source | None = None,
    ) -> None:
        self._config = config
        self._memory = memory
        self._started: dict[str, Tier] = {}
        self._private: PrivateDirectory | None = None
        if memory_pressure is not None and not callable(memory_pressure):
            raise ConfigError(
                f"memory_pressure={memory_pressure!r:.80} is not allowed: expected a callable; sources with a name are"
                " the option pressure",
                option="memory_pressure",
            )
        source = pressure.source(memory_pressure or config.pressure)
        self.janitor = Janitor(_limits(config), on_room=on_room, memory=source)

    def start(self, spec: TierSpec) -> Tier:
        """Open a named tier. Raises ConfigError (name in use, quota) or TierUnusableError."""
        if spec.name in self._started or spec.name == AUTOMATIC:
            raise ConfigError(f"tier {spec.name!r} is started already", option="name", value=spec.name)
        return self._add(spec)

    def _add(self, spec: TierSpec) -> Tier:
        tier = Tier(spec)
        total = _total_bytes(tier.root)
        if spec.min_free_bytes is not None and spec.min_free_bytes >= total:
            raise _refused("min_free_bytes", spec.min_free_bytes, f"less than the {total} bytes of {tier.root}")
        if not self._started:
            self.janitor.start()
        self._started[spec.name] = tier
        self.janitor.add_tier(tier)
        return tier

    def resolve(self, kind: TierKind, name: str | None) -> TierSpec:
        """The tier that ``tier=kind, tier_srv=name`` means, checked to be writable now. Raises a TierError."""
        tier = self._named(kind, name)
        if tier.spec.kind != kind:
            raise TierMismatchError(
                f"tier_srv={tier.name!r} is a {tier.spec.kind} tier, but tier={kind!r}",
                tier=kind,
                tier_srv=tier.name,
                kind=tier.spec.kind,
            )
        return Tier(tier.spec).spec

    def _named(self, kind: TierKind, name: str | None) -> Tier:
        if name is None and kind == "ram":
            return self.automatic()
        if name is None:
            of_kind = [tier.name for tier in self._started.values() if tier.spec.kind == kind]
            raise TierUnknownError(
                f"tier={kind!r} needs tier_srv, the name of a started tier{_list(of_kind)}", tier=kind
            )
        if name == AUTOMATIC:
            return self.automatic()
        if name not in self._started:
            raise TierUnknownError(f"tier_srv={name!r} is not started{nearest(name, self._started)}", tier_srv=name)
        return self._started[name]

    def automatic(self) -> Tier:
        """The ``ram`` tier; made when first asked for."""
        if AUTOMATIC not in self._started:
            self._private = PrivateDirectory(self._tmpfs())
            spec = TierSpec(
                name=AUTOMATIC,
                kind="ram",
                path=str(self._private.path),
                quota_bytes=self._ram_quota(self._private.path),
            )
            self._add(spec)
        return self._started[AUTOMATIC]

    def all(self) -> list[Tier]:
        """Fastest first."""
        return sorted(self._started.values(), key=lambda tier: _SPEED[tier.spec.kind])

    def infos(self) -> list[TierInfo]:
        """Lists every directory: not for an event loop."""
        return [tier_info(tier) for tier in self.all()]

    def readable(self) -> tuple[TierSpec, ...]:
        return tuple(tier.spec for tier in self.all())

    def close(self) -> None:
        self.janitor.stop()
        self._started.clear()
        if self._private is not None:
            self._private.remove()
            self._private = None

    def _tmpfs(self) -> Path:
        if self._config.ram_dir is not None:
            return Path(self._config.ram_dir)
        shm = Path(TMPFS)
        if shm.is_dir() and os.access(shm, os.W_OK) and _total_bytes(shm) >= MIN_TMPFS_BYTES:
            return shm
        _log.warning("no usable tmpfs at %s: the automatic tier lies in %s", TMPFS, tempfile.gettempdir())
        return Path(tempfile.gettempdir())

    def _ram_quota(self, path: Path) -> int:
        if self._config.ram_quota_bytes is not None:
            return self._config.ram_quota_bytes
        return min(self._memory.system().total // 4, _total_bytes(path) // 2)


def _limits(config: RuntimeConfig) -> Limits:
    """Raises ConfigError for values that contradict one another."""
    high, cap = config.pressure_high, config.namespace_cap
    if config.pressure_low > high:
        raise _refused("pressure_low", config.pressure_low, f"at most pressure_high={high}")
    if config.namespace_floor > cap:
        raise _refused("namespace_floor", config.namespace_floor, f"at most namespace_cap={cap}")
    return Limits(
        interval_s=config.janitor_interval_s,
        pressure_high=high,
        pressure_low=config.pressure_low,
        namespace_floor=config.namespace_floor,
        namespace_cap=cap,
    )


def _refused(option: str, value: float, allowed: str) -> ConfigError:
    return ConfigError(
        f"{option}={value} is not allowed: expected {allowed}", option=option, value=value, allowed=allowed
    )


def tier_info(tier: Tier) -> TierInfo:
    """As it is now; a directory that went away is an empty tier that cannot be written to."""
    spec, used = tier.spec, 0
    with suppress(OSError):
        used = tier.quota.used()
    return TierInfo(
        name=spec.name,
        kind=spec.kind,
        path=spec.path,
        quota_bytes=spec.quota_bytes,
        used_bytes=used,
        objects=sum(1 for _ in tier.objects()),
        writable=os.access(tier.root, os.W_OK),
    )


def _total_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_blocks * status.f_frsize


def _list(names: list[str]) -> str:
    return f" (started: {', '.join(sorted(names))})" if names else " (none is started: see start_tier)"


class PrivateDirectory:
    """A directory that dies with its owner: removed by ``remove``, or swept by the next owner after a kill -9."""

    def __init__(self, base: Path) -> None:
        try:
            self._home = _home(base)
            self._sweep()
            self._lock, lock_path = self._take_lock()
            self.path = lock_path.with_suffix("")
            self.path.mkdir(mode=0o700)
        except OSError as error:
            words = f"the automatic tier cannot be made in {base}: {os_reason(error)}"
            raise TierUnusableError(words, path=str(base)) from error

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.with_suffix(".lock").unlink(missing_ok=True)
        os.close(self._lock)

    def _take_lock(self) -> tuple[int, Path]:
        """A sweeper may take a new lock file before its maker has locked it: then the name is gone; take another."""
        while True:
            path = self._home / f"{os.getpid()}-{secrets.token_hex(4)}.lock"
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return fd, path
            os.close(fd)

    def _sweep(self) -> None:
        """Remove what dead runtimes left, and what their last worker still wrote when that was removed."""
        for folder in self._home.iterdir():  # a living one's lock is older than its folder
            if folder.is_dir() and not folder.with_suffix(".lock").exists():
                shutil.rmtree(folder, ignore_errors=True)
        for lock in self._home.glob("*.lock"):
            with suppress(OSError):  # BlockingIOError: its owner lives
                fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                    lock.unlink()
                finally:
                    os.close(fd)


def _home(base: Path) -> Path:
    """This user's folder in a directory that everybody may write to; another's folder of that name is not trusted."""
    home = base / f"barrel-inference-{os.getuid()}"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = home.lstat()
    if home.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o022:
        return Path(tempfile.mkdtemp(prefix="barrel-inference-", dir=base))
    return home
