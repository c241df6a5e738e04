"""``python -m barrel_inference.registry.sources.pip_link ARGUMENTS``: pip with these arguments, except that an index's
wheel is not fetched. Where pip would fetch it from is printed as a line of JSON instead, so that the registry's own
downloader can, with everything it survives.

All the choosing, configuration and logins stay pip's. It has no interface for this; a pip that is built otherwise than
expected here simply fetches the wheel itself. Runs in a process of its own, which it owns.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
from collections.abc import Callable, Iterable
from typing import Any

Download = Callable[[Any, Any, str], Any]


def main(arguments: list[str]) -> None:
    with contextlib.suppress(ImportError):
        from pip._internal.network import download

        for name in ("Downloader", "BatchDownloader"):  # newer versions have but the first
            kind: Any = getattr(download, name, None)
            if kind is not None:
                kind.__call__ = _telling(kind.__call__)
    sys.argv = ["pip", *arguments]
    runpy.run_module("pip", run_name="__main__", alter_sys=True)


def _telling(original: Download) -> Download:
    def call(downloader: Any, links: Any, location: str) -> Any:
        for link in links if isinstance(links, Iterable) else (links,):
            if (told := _describe(downloader, link)) is not None:
                sys.stdout.write(f"{json.dumps(told)}\n")
                sys.stdout.flush()
                os._exit(0)  # pip would take an exception for a failure of its own
        return original(downloader, links, location)

    return call


def _describe(downloader: Any, link: Any) -> dict[str, str | None] | None:
    """None for what pip is to fetch itself: metadata, and what only its own session can."""
    from pip._vendor.requests import Request

    try:
        session = downloader._session
        if not link.is_wheel or session.cert or session.proxies or session.verify is False:
            return None
        request = session.prepare_request(Request("GET", link.url_without_fragment))
        return {
            "url": request.url,
            "file_name": link.filename,
            "sha256": link.hash if link.hash_name == "sha256" else None,
            "authorization": request.headers.get("Authorization"),
            "ca_file": session.verify if isinstance(session.verify, str) else None,
        }
    except AttributeError:
        return None


if __name__ == "__main__":
    main(sys.argv[1:])
