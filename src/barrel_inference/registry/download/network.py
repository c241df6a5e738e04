"""HTTP as the registry needs it: every hop checked, credentials only to the host they belong to, bodies bounded.
A Network owns one client session."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import ssl
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, Self, cast
from urllib.parse import quote, urljoin, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from barrel_inference.errors import PullError
from barrel_inference.threads import alone

MAX_HOPS = 10
MAX_RETRY_AFTER_S = 120.0
MAX_ERROR_BODY = 4096
RETRYABLE = (408, 425, 429, 500, 502, 503, 504)
Sleep = Callable[[float], Awaitable[None]]
_NOT_QUOTED = "%/:=&?~#+!$,;'@()*[]"
_PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # IPv4 behind a gateway, in the last 32 bits


class TransientError(PullError):
    """Worth another try, after ``retry_after`` seconds if the server said so."""

    retry_after: float | None = None


class Credential(NamedTuple):
    """An Authorization header and the only origin that may see it."""

    origin: str
    header: str


class NetworkPolicy(NamedTuple):
    """``private_hosts``: host:port pairs the operator configured, reachable whatever their address."""

    insecure: bool = False  # http:// and unverified certificates
    allow_private: bool = False
    private_hosts: frozenset[str] = frozenset()
    stall_s: float = 30.0
    ca_file: str | None = None  # certificates to trust instead of the system's


def origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{host_and_port(url)}"


def host_and_port(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or _PORTS.get(parts.scheme, 0)}"


class Network:
    def __init__(self, policy: NetworkPolicy, sleep: Sleep = asyncio.sleep) -> None:
        self.policy = policy
        self._sleep = sleep
        self._proxies = _proxies()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        policy = self.policy
        context = False if policy.insecure else ssl.create_default_context(cafile=policy.ca_file)
        connector = aiohttp.TCPConnector(resolver=_GuardedResolver(policy, self._proxies), ssl=context, limit=32)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=policy.stall_s, sock_read=policy.stall_s)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "barrel-inference", "Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(
        self, url: str, *, headers: dict[str, str] | None = None, credential: Credential | None = None
    ) -> aiohttp.ClientResponse:
        """The response after redirects, whatever its status; its body is still to be read, by ``async with``.

        Raises ``TransientError`` when the connection failed, ``PullError`` when a hop is not allowed.
        """
        for _ in range(MAX_HOPS):
            check_url(url, self.policy)
            response = await self._one(url, dict(headers or {}), credential)
            location = response.headers.get("Location")
            if response.status not in (301, 302, 303, 307, 308) or location is None:
                return response
            response.release()
            url = _joined(url, location)
        raise PullError(f"more than {MAX_HOPS} redirects")

    async def read(
        self, url: str, limit: int, *, headers: dict[str, str] | None = None, credential: Credential | None = None
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """A whole, small body, tried again a few times; more than ``limit`` bytes is a ``PullError``."""
        for pause in (0.5, 2.0, None):
            told = None
            try:
                async with await self.get(url, headers=headers, credential=credential) as response:
                    body = await read_bounded(response, limit)
                if response.status not in RETRYABLE or pause is None:
                    return response, body
                told = retry_after_s(response.headers.get("Retry-After"), time.time())
            except TransientError:
                if pause is None:
                    raise
            await self._sleep(pause if told is None else told)
        raise AssertionError  # the last round returns or raises

    async def _one(self, url: str, headers: dict[str, str], credential: Credential | None) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("use Network with async with")
        if credential and credential.origin == origin_of(url):
            headers["Authorization"] = credential.header
        try:
            # what is quoted stays as it is: quoting it anew would break the signature of a signed URL
            target = URL(quote(url, safe=_NOT_QUOTED), encoded=True)
            proxy = _proxy_for(target, self._proxies)
            return await self._session.get(target, headers=headers, allow_redirects=False, proxy=proxy)
        except aiohttp.ClientConnectorCertificateError as error:  # no other try will be better
            raise PullError(f"{target.host}: {error.certificate_error}") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise transient(error, url) from None
        except ValueError as error:  # a name that no resolver can be asked for, a token that no header can hold
            raise PullError(f"cannot ask {urlsplit(url).hostname}: {error}") from None


async def read_bounded(response: aiohttp.ClientResponse, limit: int) -> bytes:
    body = bytearray()
    try:
        async for block in response.content.iter_any():
            body += block
            if len(body) > limit:
                raise PullError(f"{response.url.host} answers with more than {limit} bytes where little was expected")
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise transient(error, str(response.url)) from None
    return bytes(body)


def transient(error: BaseException, url: str) -> TransientError:
    host = urlsplit(url).hostname
    if isinstance(error, TimeoutError):
        return TransientError(f"{host} does not answer")
    if isinstance(error, aiohttp.ClientConnectorError):
        through = "" if error.host == host else f" through {error.host}:{error.port}"  # a proxy
        cause = error.os_error
        # asyncio puts the address in the place of the reason
        reason = os.strerror(cause.errno or 0) if isinstance(cause, ConnectionError) else cause.strerror or cause
        return TransientError(f"{host} cannot be reached{through} ({reason})")
    # what aiohttp says of an answer that it cannot take names the URL, which may be a proxy's with its password
    text = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
    words = "".join(char for char in " ".join(text.split()) if char.isprintable())
    return TransientError(f"{host}: {words[:200] or type(error).__name__}")


async def refusal(response: aiohttp.ClientResponse) -> PullError:
    """The error for an unwanted status, with the server's own words if it has short ones."""
    try:
        text = (await response.content.read(MAX_ERROR_BODY)).decode("utf-8", "replace")
    except (aiohttp.ClientError, TimeoutError, OSError):
        text = ""
    words = "".join(char for char in " ".join(text.split())[:200] if char.isprintable())
    message = f"{response.url.host} answered {response.status}" + (f": {words}" if words and "<" not in words else "")
    if response.status in RETRYABLE:
        error = TransientError(message, status=response.status)
        error.retry_after = retry_after_s(response.headers.get("Retry-After"), time.time())
        return error
    return PullError(message, status=response.status)


def retry_after_s(value: str | None, now: float) -> float | None:
    """Seconds from a Retry-After header, which is a number or a date; bounded."""
    if not value:
        return None
    try:
        seconds = float(value) if value.strip().isdigit() else parsedate_to_datetime(value).timestamp() - now
    except ValueError:
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)


def check_url(url: str, policy: NetworkPolicy) -> None:
    """Refuse what a redirect must never reach: other schemes, plain http, private addresses."""
    try:
        parts, pair = urlsplit(url), host_and_port(url)
        url.encode()
    except ValueError:
        raise PullError(f"refusing to follow {url[:100]!r}, which is not a URL") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise PullError(f"refusing to follow {parts.scheme or 'a relative'}: URL {url[:100]!r}")
    configured = pair in policy.private_hosts
    if parts.scheme == "http" and not (policy.insecure or configured):
        raise PullError(f"refusing plain http to {parts.hostname}; allow it with --insecure")
    address = address_of(parts.hostname)
    if address is None:
        return  # a name: the resolver checks every address it stands for
    if not (policy.allow_private or configured) and is_private(address):
        raise PullError(f"refusing the private address {address}")


def _joined(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:
        raise PullError(f"refusing to follow {location[:100]!r}, which is not a URL") from None


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """None for a name. Also ``127.1``, ``0x7f000001`` and ``2130706433``, which the system connects to as addresses
    without asking any resolver."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


def is_private(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        embedded = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF) if address in _NAT64 else None
        address = address.ipv4_mapped or address.sixtofour or embedded or address
    return not address.is_global or address.is_multicast


def _proxies() -> dict[str, str]:
    """The environment's proxy for each scheme, ``http://`` where it says none. We ask for them ourselves since aiohttp,
    when it may, also sends the logins of ~/.netrc, which are for other programs and clash with our own."""
    found = urllib.request.getproxies()
    return {scheme: url if "://" in url else f"http://{url}" for scheme, url in found.items() if scheme in _PORTS}


def _proxy_for(target: URL, proxies: Mapping[str, str]) -> URL | None:
    """None where it goes there directly."""
    if target.scheme not in proxies or urllib.request.proxy_bypass(target.host or ""):
        return None
    proxy = URL(proxies[target.scheme])
    if proxy.scheme not in _PORTS or not proxy.host:
        raise PullError(f"{target.scheme.upper()}_PROXY names no http:// or https:// proxy")
    return proxy


class _GuardedResolver(AbstractResolver):
    """Checks the very addresses that will be connected to, so that a name cannot be rebound in between."""

    def __init__(self, policy: NetworkPolicy, proxies: Mapping[str, str]) -> None:
        self._policy = policy
        self._resolver = aiohttp.ThreadedResolver(cast(asyncio.AbstractEventLoop, _Names()))
        # behind a proxy the proxy resolves; its own address is the operator's choice
        self._trusted = set(policy.private_hosts)
        with contextlib.suppress(ValueError):  # one that is no URL is refused when it is needed
            self._trusted |= {host_and_port(proxy) for proxy in proxies.values()}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        results = await self._resolver.resolve(host, port, family)
        if self._policy.allow_private or f"{host}:{port}" in self._trusted:
            return results
        for result in results:
            if is_private(ipaddress.ip_address(result["host"].split("%")[0])):
                raise PullError(f"refusing {host}: it stands for the private address {result['host']}")
        return results

    async def close(self) -> None:
        await self._resolver.close()


class _Names:
    """The part of a loop that aiohttp's resolver asks. The loop itself would keep a thread of its own executor, where
    requests are rendered, for as long as a name server does not answer."""

    async def getaddrinfo(self, host: str, port: int, *, family: int, type: int, flags: int) -> Any:
        return await alone(socket.getaddrinfo, host, port, family, type, 0, flags)

    async def getnameinfo(self, address: Any, flags: int) -> Any:
        return await alone(socket.getnameinfo, address, flags)
