"""Garbage: what no manifest, no running pull or create and no loaded model refers to. Works on the directories as they
are, under the root's lock; owns nothing.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from barrel_inference.registry.blobs import remove_entry
from barrel_inference.registry.files import writing
from barrel_inference.registry.locks import leased, try_lock
from barrel_inference.registry.manifest import Manifest
from barrel_inference.registry.store import Ground

UPLOAD_KEEP_S = 3600.0  # between POST /api/blobs and the create that uses it
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}")


class Removed(NamedTuple):
    """``kind``: blob, shards, ref, part, upload or temporary. ``freed_bytes``: 0 where another link keeps it."""

    kind: str
    name: str
    freed_bytes: int


def collect(ground: Ground, now: float, *, dry_run: bool) -> list[Removed]:
    """Remove all garbage, or only say what would go. Nothing is taken that anybody in any process counts on."""
    ground.root.prepare()
    with ground.root.lock(), writing(ground.root.path):
        manifests = ground.store.list().manifests
        held = leased(ground.root.tmp)
        mentioned = ground.store.mentioned_digests()
        garbage = [
            *([] if mentioned is None else _blobs(ground, manifests, held | mentioned, now)),
            *([] if mentioned is None else _refs(ground, manifests)),
            *_temporary_files(ground),
            *_unfinished(ground.root.tmp, held, now, ground.options.part_keep_days * 86400),
        ]
        return [_remove(kind, path, dry_run) for kind, path in garbage]


def mark_uploaded(tmp: Path, digest: str) -> None:
    """Spare an uploaded blob for a while, although no manifest names it yet."""
    (tmp / f"{digest[7:]}.uploaded").touch()


def _blobs(ground: Ground, manifests: list[Manifest], held: set[str], now: float) -> list[tuple[str, Path]]:
    uploaded = {p.stem for p in ground.root.tmp.glob("*.uploaded") if now - p.stat().st_mtime < UPLOAD_KEEP_S}
    needed = {digest[7:] for manifest in manifests for digest in manifest.digests}
    needed |= held | uploaded
    return [
        ("shards" if path.suffix == ".shards" else "blob", path)
        for digest, path in ground.blobs.entries()
        if digest not in needed
    ]


def _refs(ground: Ground, manifests: list[Manifest]) -> list[tuple[str, Path]]:
    """A ref lives as long as a manifest uses the blob it points to."""
    used = {manifest.blob_path for manifest in manifests}
    refs = [path for path in ground.root.refs.glob("*.ref") if path.is_file()]
    return [("ref", path) for path in refs if path.read_text("utf-8", "surrogateescape").strip() not in used]


def _temporary_files(ground: Ground) -> list[tuple[str, Path]]:
    """Left by a process that died in the middle of an atomic write: nobody else writes while we hold the lock."""
    places = [ground.root.refs, *(path for path in ground.root.manifests.iterdir() if path.is_dir())]
    return [("temporary", path) for place in places for path in place.iterdir() if _TEMPORARY.fullmatch(path.name)]


def _unfinished(tmp: Path, held: set[str], now: float, keep_s: float) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    for path in tmp.iterdir():
        try:
            age_s = now - path.lstat().st_mtime
        except FileNotFoundError:  # its owner was quicker
            continue
        match path.suffix:
            case ".work" | ".upload" | ".link" if path.name not in held:
                found.append(("temporary", path))
            case ".uploaded" if age_s >= UPLOAD_KEEP_S:
                found.append(("upload", path))
            case ".part" if age_s >= keep_s and path.is_file() and _is_idle(path):
                found.append(("part", path))
            case ".state" if not path.with_suffix("").exists():
                found.append(("temporary", path))
    return found


def _is_idle(part: Path) -> bool:
    fd = try_lock(part)
    if fd is not None:
        os.close(fd)
    return fd is not None


def _remove(kind: str, path: Path, dry_run: bool) -> Removed:
    if dry_run:
        status = path.lstat()
        frees = not path.is_dir() and status.st_nlink == 1
        return Removed(kind, path.name, status.st_size if frees else 0)
    freed = remove_entry(path)
    if kind == "part":
        path.with_name(path.name + ".state").unlink(missing_ok=True)
    return Removed(kind, path.name, freed)
