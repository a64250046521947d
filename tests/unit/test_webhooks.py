"""Webhooks without stores: where they may go, how they are signed and sent, when they are tried again."""

import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import InvalidWebhookSignatureError, OpenAI

from core.targets import check_url, is_public
from core.webhooks import MAX_ATTEMPTS, Outcome, outcome_of, retry_in_s, secret_of
from runtime.sending import WebhookSender
from tests.support.receiver import Receiver

PRIVATE = {
    "loopback": ("127.0.0.1", "127.8.8.8", "::1"),
    "this network": ("0.0.0.0", "0.1.2.3", "::"),
    "private": ("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fd00::1", "fc00::1"),
    "shared": ("100.64.0.1", "100.127.255.255"),
    "link local": ("169.254.0.1", "fe80::1"),
    "site local": ("fec0::1",),
    "metadata": ("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"),
    "multicast": ("224.0.0.1", "239.255.255.250", "ff02::1", "ff0e::1"),
    "broadcast and reserved": ("255.255.255.255", "240.0.0.1", "192.0.0.1", "198.18.0.1"),
    "documentation": ("192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1"),
    "IPv4 in IPv6": ("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1"),
    "IPv4 behind NAT64": ("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1"),
    "IPv4 in 6to4": ("2002:7f00:1::", "2002:a00:1::", "2002:a9fe:a9fe::"),
    "Teredo": ("2001:0:4136:e378:8000:63bf:3fff:fdd2",),
}
PUBLIC = ("8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808")


@pytest.mark.parametrize("address", [one for many in PRIVATE.values() for one in many])
def test_no_private_address_is_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://example.com/",
            "ftp://example.com/",
            "file:///etc/passwd",
            "example.com",
            "https://",
            "//x/y",
            "",
        ),
        *(
            "https://localhost/",
            "https://localhost./",
            "https://127.0.0.1/",
            "https://[::1]/",
            "https://[fe80::1%25e]/",
        ),
        *("https://10.0.0.1:8080/", "https://169.254.169.254/latest", "https://[::ffff:127.0.0.1]/"),
        *("https://user:secret@example.com/", "https://user@example.com/", "https://example.com:0/"),
        *(
            "https://example.com:99999/",
            "https://exa mple.com/",
            "https://example.com/\n",
            "https://exämple.com/",
        ),
        *("https://[::1/", "https://example.com/" + "x" * 2048),
    ],
)
def test_a_url_that_nothing_may_be_sent_to_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"^(must|is|has)"):
        check_url(url, private_allowed=False)


def test_a_public_url_is_fine_and_a_private_one_where_it_is_allowed() -> None:
    check_url("https://example.com:8443/hooks?a=b", private_allowed=False)
    check_url("http://127.0.0.1:9000/", private_allowed=True)


@given(st.integers(1, MAX_ATTEMPTS - 1), st.floats(0, 1))
def test_pauses_grow_and_spread_over_days(attempts: int, random: float) -> None:
    pause = retry_in_s(attempts, random, None)
    assert pause is not None
    assert 4.0 <= pause <= 1.21 * 24 * 3600
    assert sum(retry_in_s(n, 0.5, None) or 0 for n in range(1, MAX_ATTEMPTS)) > 3 * 24 * 3600
    assert retry_in_s(MAX_ATTEMPTS, random, None) is None
    assert retry_in_s(attempts, random, 10.0**9) == max(24 * 3600.0, pause)
    assert (retry_in_s(1, random, 100.0) or 0) == 100.0


def test_only_2xx_is_success_and_410_wants_no_more() -> None:
    assert {outcome_of(status) for status in (200, 202, 204, 299)} == {Outcome.DELIVERED}
    assert {outcome_of(status) for status in (None, 199, 301, 302, 307, 400, 404, 429, 500)} == {
        Outcome.FAILED
    }
    assert outcome_of(410) is Outcome.UNWANTED


def test_secrets_are_told_from_their_ids_and_the_pepper() -> None:
    assert secret_of("whs_1", b"pepper") == secret_of("whs_1", b"pepper")
    assert (
        len({secret_of("whs_1", b"pepper"), secret_of("whs_2", b"pepper"), secret_of("whs_1", b"salt")}) == 3
    )


@asynccontextmanager
async def sender(*, private_allowed: bool = True) -> AsyncIterator[WebhookSender]:
    made = WebhookSender(private_allowed=private_allowed)
    try:
        yield made
    finally:
        await made.close()


async def test_both_secrets_of_a_rotation_verify_what_was_sent() -> None:
    secrets = [secret_of(name, b"pepper") for name in ("whs_new", "whs_old")]
    body = json.dumps({"type": "response.completed", "data": {"id": "resp_1"}})
    async with Receiver() as receiver, sender() as sending:
        tried, _ = await sending.send(receiver.url, "msg_1", body, secrets)
    assert (tried.status_code, tried.error) == (200, None)
    (got,) = receiver.got
    assert (got.headers["webhook-id"], got.headers["content-type"]) == ("msg_1", "application/json")
    client = OpenAI(api_key="none")
    for secret in secrets:
        client.webhooks.verify_signature(got.body, got.headers, secret=secret)
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.verify_signature(got.body, got.headers, secret=secret_of("whs_other", b"pepper"))
    event: Any = client.webhooks.unwrap(got.body, got.headers, secret=secrets[1])
    assert (event.type, event.data.id) == ("response.completed", "resp_1")


@pytest.mark.parametrize("answer", [(302, "Location: http://127.0.0.1:1/"), (500, ""), (404, "")])
async def test_redirects_are_not_followed_and_failures_are_told(answer: tuple[int, str]) -> None:
    async with Receiver(answer) as receiver, sender() as sending:
        tried, _ = await sending.send(receiver.url, "msg_1", "{}", [secret_of("whs_1", b"")])
    assert (tried.status_code, tried.error) == (answer[0], f"answered {answer[0]}")
    assert len(receiver.got) == 1


async def test_what_a_receiver_asks_to_wait_is_read() -> None:
    async with Receiver((503, "Retry-After: 17")) as receiver, sender() as sending:
        assert (await sending.send(receiver.url, "msg_1", "{}", [secret_of("whs_1", b"")]))[1] == 17.0


async def test_a_receiver_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.sending.TIMEOUT_S", 0.2)
    async with Receiver((0, "")) as receiver, sender() as sending:
        tried, _ = await sending.send(receiver.url, "msg_1", "{}", [secret_of("whs_1", b"")])
    assert (tried.status_code, tried.error) == (None, "no answer within 0.2 s")


async def test_nothing_listens() -> None:
    async with sender() as sending:
        tried, _ = await sending.send("http://127.0.0.1:1/", "msg_1", "{}", [secret_of("whs_1", b"")])
    assert tried.status_code is None
    assert tried.error


Resolver = Callable[..., Any]


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Have names mean these addresses, one list a look-up; return the names that were asked for."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        addresses = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr("runtime.sending.socket.getaddrinfo", getaddrinfo)
    return asked


@pytest.mark.shows("webhooks-private")
@pytest.mark.parametrize("address", [many[0] for many in PRIVATE.values()])
async def test_a_name_that_means_a_private_address_gets_no_connection(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    resolving(monkeypatch, ["93.184.216.34", address])  # one of several is enough
    async with sender(private_allowed=False) as sending:
        tried, _ = await sending.send("https://hooks.test/", "msg_1", "{}", [secret_of("whs_1", b"")])
    assert (tried.status_code, tried.error) == (None, "the target is in a private network")


async def test_a_connection_goes_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Receiver() as receiver, sender() as sending:
        asked = resolving(monkeypatch, ["127.0.0.1"], ["192.0.2.1"])
        tried, _ = await sending.send(
            f"http://hooks.test:{receiver.port}/a?b=c", "msg_1", "{}", [secret_of("whs_1", b"")]
        )
    assert (tried.status_code, asked) == (
        200,
        ["hooks.test"],
    )  # resolved once, for checking and for connecting
    assert receiver.got[0].headers["host"] == f"hooks.test:{receiver.port}"
    assert receiver.got[0].path == "/a?b=c"
