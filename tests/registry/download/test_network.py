"""Where requests may go, and what they carry."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import pytest

from barrel_inference.errors import PullError
from barrel_inference.registry.download.network import (
    Credential,
    Network,
    NetworkPolicy,
    TransientError,
    check_url,
    host_and_port,
    is_private,
    refusal,
    retry_after_s,
)
from tests.support.hub import Fault, Hub

SECRET = "Bearer secret"
NO_URLS = ("https://[::1", "https://h:99999/x", "https://h:-1/x", "https://h:\u0661/x", "https://\udcff/x")


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"),
        *("224.0.0.1", "::1", "::", "fe80::1", "fd00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::"),
    ],
)
def test_private_addresses(address: str) -> None:
    assert is_private(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "140.82.121.4", "2606:4700::1111"])
def test_public_addresses(address: str) -> None:
    assert not is_private(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("file:///etc/passwd", "refusing to follow file"),
        ("ftp://example.com/x", "refusing to follow ftp"),
        ("gopher://example.com", "refusing to follow gopher"),
        ("http://example.com/x", "plain http"),
        ("https://127.0.0.1/x", "private address"),
        ("https://[::1]/x", "private address"),
        ("https://169.254.169.254/latest/meta-data", "private address"),
        *(
            (f"https://{way}/x", "private address 127.0.0.1")
            for way in ("127.1", "0x7f000001", "2130706433", "0177.0.0.1")
        ),
        ("https://[64:ff9b::7f00:1]/x", "private address"),
        ("https:///x", "refusing to follow"),
        *((url, "is not a URL") for url in NO_URLS),
    ],
)
def test_urls_that_are_refused(url: str, cause: str) -> None:
    with pytest.raises(PullError, match=cause):
        check_url(url, NetworkPolicy())


async def get(hub: Hub, path: str, **policy: Any) -> int:
    private = frozenset({host_and_port(hub.url)})
    async with (
        Network(NetworkPolicy(**{"private_hosts": private, "stall_s": 2.0, **policy})) as network,
        await network.get(hub.url + path, credential=Credential(hub.url, SECRET)) as response,
    ):
        return response.status


@pytest.mark.parametrize("target", ["file:///etc/passwd", "http://127.0.0.1:9/x", "https://10.0.0.1/x", "//[::1]:9/"])
async def test_redirects_to_where_nobody_should_go(hub: Hub, target: str) -> None:
    hub.serve("/x", b"").faults = [Fault(redirect=target)]
    with pytest.raises(PullError, match="refusing"):
        await get(hub, "/x")


@pytest.mark.parametrize("target", ["https://[::1", "https://h:99999/x", "https://\xff/x"])
async def test_redirects_to_what_is_no_url(hub: Hub, target: str) -> None:
    hub.serve("/x", b"").faults = [Fault(redirect=target)]
    with pytest.raises(PullError, match="is not a URL"):
        await get(hub, "/x")


@pytest.mark.parametrize("host", ["a..b", "...", "a" * 70 + ".example"])
async def test_names_that_no_resolver_can_be_asked_for(host: str) -> None:
    async with Network(NetworkPolicy()) as network:
        with pytest.raises(PullError, match="cannot ask"):
            await network.get(f"https://{host}/x")


async def test_a_token_that_no_header_can_hold(hub: Hub) -> None:
    async with Network(NetworkPolicy(insecure=True, allow_private=True)) as network:
        with pytest.raises(PullError, match="cannot ask"):
            await network.get(hub.url, credential=Credential(hub.url, "Bearer a\r\nX-Evil: b"))
    assert not hub.seen


async def test_logins_of_netrc_are_for_others(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login user password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    hub.serve("/x", b"")
    assert await get(hub, "/x") == 200
    async with Network(NetworkPolicy(insecure=True, allow_private=True)) as network:
        (await network.get(f"{hub.url}/x")).release()
    assert [seen.headers.get("authorization") for seen in hub.seen] == [SECRET, None]


@pytest.mark.parametrize(
    ("proxy", "cause"),
    [
        *(("socks5://127.0.0.1:9", "HTTP_PROXY names no"), ("http://", "HTTP_PROXY names no")),
        *(("http://[::1", "Invalid IPv6 URL"), ("http://h:99999", "cannot ask")),
    ],
)
async def test_a_proxy_that_is_none(hub: Hub, monkeypatch: pytest.MonkeyPatch, proxy: str, cause: str) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(PullError, match=cause):
        await get(hub, "/x")


@pytest.mark.parametrize("form", ["http://user:pass@{}", "{}"])
async def test_through_a_proxy(hub: Hub, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv("http_proxy", form.format(hub.url.removeprefix("http://")))
    monkeypatch.delenv("no_proxy", raising=False)
    async with Network(NetworkPolicy(insecure=True)) as network:
        (await network.get("http://model.example/x")).release()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert await get(hub, "/y") == 404
    assert [seen.path for seen in hub.seen] == ["http://model.example/x", "/y"]
    assert ("proxy-authorization" in hub.seen[0].headers) == ("@" in form)


async def test_a_proxy_that_refuses_does_not_make_its_password_known(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", hub.url.replace("//", "//user:secret@"))
    async with Network(NetworkPolicy()) as network:
        with pytest.raises(TransientError) as caught:
            await network.get("https://model.example/x")
    assert "secret" not in caught.value.message and "Unsupported method" in caught.value.message


async def test_a_servers_words_hold_no_control_sequences(hub: Hub) -> None:
    hub.serve("/x", b"").faults = [Fault(status=403, body=b"no\x1b]0;x\x07 \x1b[2Jway")]
    async with (
        Network(NetworkPolicy(insecure=True, allow_private=True)) as network,
        await network.get(f"{hub.url}/x") as response,
    ):
        assert (await refusal(response)).message == "127.0.0.1 answered 403: no]0;x [2Jway"


async def test_names_that_stand_for_private_addresses(hub: Hub) -> None:
    hub.serve("/x", b"").faults = [Fault(redirect="https://localhost:9/x")]
    with pytest.raises(PullError, match="stands for the private address"):
        await get(hub, "/x")


async def test_signed_urls_are_taken_as_they_stand(hub: Hub) -> None:
    hub.serve("/y", b"")
    hub.serve("/x", b"").faults = [Fault(redirect=f"{hub.url}/y?sig=a%2Fb%3D%2B&t=%7E")]
    assert await get(hub, "/x") == 200
    assert hub.seen[-1].path == "/y?sig=a%2Fb%3D%2B&t=%7E"
    hub.serve("/a%20%C3%A4", b"")
    assert await get(hub, "/a ä") == 200


async def test_redirects_end(hub: Hub) -> None:
    hub.serve("/x", b"").faults = [Fault(redirect=f"{hub.url}/x")] * 50
    with pytest.raises(PullError, match="more than 10 redirects"):
        await get(hub, "/x")


async def test_credentials_stay_with_their_host(hub: Hub) -> None:
    with Hub() as other:
        other.serve("/y", b"")
        hub.serve("/x", b"").faults = [Fault(redirect=f"{other.url}/y")]
        hosts = frozenset({host_and_port(hub.url), host_and_port(other.url)})
        assert await get(hub, "/x", private_hosts=hosts) == 200
        assert hub.seen[0].headers["authorization"] == SECRET
        assert "authorization" not in other.seen[0].headers


async def test_a_server_that_is_not_there() -> None:
    with Hub() as gone:
        pass
    with pytest.raises(TransientError, match=r"^127\.0\.0\.1 cannot be reached \(Connection refused\)$"):
        await get(gone, "/x")


async def test_endless_bodies_are_cut(hub: Hub) -> None:
    hub.serve("/x", b"x" * 1000).faults = [Fault(endless=True)]
    async with Network(NetworkPolicy(private_hosts=frozenset({host_and_port(hub.url)}))) as network:
        with pytest.raises(PullError, match="more than 100000 bytes"):
            await network.read(f"{hub.url}/x", 100_000)


async def test_small_bodies_wait_as_long_as_the_server_says(hub: Hub) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    hub.serve("/x", b"at last").faults = [Fault(status=429, headers={"Retry-After": "7"}), Fault(status=503)]
    async with Network(NetworkPolicy(private_hosts=frozenset({host_and_port(hub.url)})), sleep) as network:
        assert (await network.read(f"{hub.url}/x", 100))[1] == b"at last"
    assert slept == [7.0, 2.0]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("5", 5.0), ("Thu, 01 Jan 1970 00:01:40 GMT", 40.0), ("99999", 120.0), ("soon", None), ("-3", None), (None, None)],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value, now=60.0) == seconds
