"""Who may ask: the Host header against DNS rebinding, the Origin of web pages, API keys. Pure decisions.

DNS rebinding: a page of evil.example, whose name now means 127.0.0.1, asks with its own name as Host. An address in the
Host header cannot come from that trick, nor can a name without a dot, which the local network gives (a container's);
of others only those that mean this machine are taken.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

_LOCAL_SUFFIXES = (".localhost", ".local", ".internal")
_LOCAL_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(:\d+)?")
_APP_SCHEMES = ("app://", "file://", "tauri://", "vscode-webview://", "vscode-file://")


def is_loopback(host: str) -> bool:
    """Whether a server bound to ``host`` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def without_port(host: str) -> str:
    """Of a Host header."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host


def host_allowed(host: str, extra: Iterable[str]) -> bool:
    """An address, a name of this machine or its network, or one of ``extra``."""
    name = without_port(host).lower().rstrip(".")
    if not name:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        own = {each.lower() for each in (socket.gethostname(), *extra)}
        return "." not in name or name.endswith(_LOCAL_SUFFIXES) or name in own
    return True


class Origins:
    """``patterns``: origins that may ask beside the pages and apps of this machine, with * for any characters."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        texts = [re.escape(pattern.strip()).replace(r"\*", ".*") for pattern in patterns]
        self._patterns = [re.compile(text) for text in texts]

    def allows(self, origin: str, host: str) -> bool:
        """``host``: the request's Host; a page of the same host is no stranger."""
        return bool(
            _LOCAL_ORIGIN.fullmatch(origin)
            or origin.startswith(_APP_SCHEMES)
            or (host and origin.partition("://")[2] == host)
            or any(pattern.fullmatch(origin) for pattern in self._patterns)
        )


class Keys:
    """Compares digests, in a time that depends neither on the key given nor on which one it equals.

    ``same`` is a seam for tests: time cannot be measured well enough to show that."""

    def __init__(self, keys: Sequence[str], *, same: Callable[[bytes, bytes], bool] = hmac.compare_digest) -> None:
        self._same = same
        self._digests = [sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def accepts(self, key: str) -> bool:
        digest = sha256(key.encode(errors="replace")).digest()
        matches = [self._same(digest, known) for known in self._digests]
        return any(matches)


def key_of(authorization: str, x_api_key: str) -> str:
    """The key that a request carries, or nothing."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else x_api_key.strip()


def client_of(keys: Keys, key: str, address: str) -> str:
    """Who asks, for the taking of turns: the key where keys are wanted (as a digest, to be no secret), else the
    machine."""
    return sha256(key.encode(errors="replace")).hexdigest() if keys else address
