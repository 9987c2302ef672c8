"""Whose address a connection counts for (gateway/addresses.py)."""

from __future__ import annotations

import dataclasses

import pytest

from roskva.config import Settings
from roskva.errors import InvalidSetting
from roskva.gateway.addresses import Addresses

SETTINGS = Settings(proxies=("127.0.0.1", "::1", "10.0.0.0/8"), unlimited_addresses=("127.0.0.1", "::1", "198.51.100.7", "2001:db8:9::7"))


@pytest.mark.parametrize(
    ("peer", "forwarded", "counted"),
    [
        ("203.0.113.5", "", "203.0.113.5"),
        ("203.0.113.5", "192.0.2.1", "203.0.113.5"),  # not a proxy: what it says does not count
        ("10.1.2.3", "192.0.2.1", "192.0.2.1"),
        ("10.1.2.3", "192.0.2.9, 192.0.2.1", "192.0.2.1"),  # only what the proxy added itself
        ("10.1.2.3", "127.0.0.1, 192.0.2.1", "192.0.2.1"),
        ("10.1.2.3", "192.0.2.1, ", "10.1.2.3"),  # malformed
        ("10.1.2.3", "unknown", "10.1.2.3"),
        ("10.1.2.3", "", "10.1.2.3"),
        ("10.1.2.3", "192.0.2.1:4711", "192.0.2.1"),
        ("10.1.2.3", "[2001:db8:1:2:3:4:5:6]:4711", "2001:db8:1:2::/64"),
        ("::ffff:203.0.113.5", "", "203.0.113.5"),
        ("2001:db8:1:2:3:4:5:6", "", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "", "2001:db8:1:2::/64"),
        ("127.0.0.1", "", ""),
        ("127.0.0.1", "198.51.100.7", ""),
        ("::1", "", ""),
        ("2001:db8:9::7", "", ""),
        ("2001:db8:9::8", "", "2001:db8:9::/64"),  # of the same prefix, but not exempt
        ("", "", "unknown"),
    ],
)
def test_what_is_counted(peer: str, forwarded: str, counted: str) -> None:
    assert Addresses(SETTINGS).counted(peer, forwarded) == counted


def test_which_peers_are_proxies() -> None:
    addresses = Addresses(SETTINGS)
    assert [peer for peer in ("127.0.0.1", "::1", "10.9.8.7", "11.0.0.1", "", "::ffff:10.1.1.1") if addresses.is_proxy(peer)] == [
        "127.0.0.1", "::1", "10.9.8.7", "::ffff:10.1.1.1",
    ]  # fmt: skip


@pytest.mark.parametrize("setting", ["proxies", "unlimited_addresses"])
def test_what_is_no_address_is_refused_by_name(setting: str) -> None:
    with pytest.raises(InvalidSetting, match=rf"{setting} holds '10\.0\.0\.0/99'"):
        Addresses(dataclasses.replace(Settings(), **{setting: ("10.0.0.0/99",)}))  # type: ignore[arg-type]
