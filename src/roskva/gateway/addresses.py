"""Where a client connects from, also through a proxy, and what the limits of an address count by (docs/http.md, Addresses).

The address is the peer's; of a peer among `proxies` it is the last entry of X-Forwarded-For, which is what that proxy added itself:
whatever stands before it a client may have invented. Limits count IPv6 by its /64: whoever has one address there has them all.
"""

from __future__ import annotations

import asyncio
import ipaddress
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from roskva.config import Settings
from roskva.errors import InvalidSetting

_IPV6_PREFIX: Final = 64
_KNOWN_MAX: Final = 4_096  # texts whose address is remembered: publishers and proxies come again and again

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressSet:
    """Addresses and networks (10.0.0.0/8), as a setting lists them."""

    def __init__(self, texts: Iterable[str], setting: str) -> None:
        self._single: set[Address] = set()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for text in texts:
            try:
                if "/" in text:
                    self._networks.append(ipaddress.ip_network(text))
                else:
                    self._single.add(ipaddress.ip_address(text))
            except ValueError as error:
                raise InvalidSetting(f"{setting} holds {text!r}, which is no address: {error}.") from None

    def __contains__(self, address: Address) -> bool:
        return address in self._single or any(address in network for network in self._networks)


class Addresses:
    """Tells addresses as the limits count them: "" is one without limits."""

    def __init__(self, settings: Settings) -> None:
        self._proxies = AddressSet(settings.proxies, "proxies")
        self._unlimited = AddressSet(settings.unlimited_addresses, "unlimited_addresses")
        self._known: dict[str, str] = {}  # what peers count by, of those that are no proxies: as many as are remembered

    def is_proxy(self, peer: str) -> bool:
        address = parsed(peer)
        return address is not None and address in self._proxies

    def counted(self, peer: str, forwarded: str = "") -> str:
        """What connections of this peer are counted by; `forwarded` is the X-Forwarded-For that it sent."""
        known = self._known.get(peer)
        if known is not None:
            return known
        if self.is_proxy(peer):
            return self._counted(peer, forwarded)
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        known = self._known[peer] = self._counted(peer, "")
        return known

    def _counted(self, peer: str, forwarded: str) -> str:
        address = parsed(peer)
        if forwarded:
            address = parsed(forwarded.rpartition(",")[2]) or address
        if address is None:
            return "unknown"  # it hung up before anybody could look
        if address in self._unlimited:
            return ""
        if isinstance(address, ipaddress.IPv6Address):
            return sys.intern(str(ipaddress.IPv6Network((int(address), _IPV6_PREFIX), strict=False)))
        return sys.intern(str(address))


@lru_cache(_KNOWN_MAX)
def parsed(text: str) -> Address | None:
    """The address in a peer's name or an entry of X-Forwarded-For; some proxies add the port."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped  # a socket for both says so of IPv4
    return address


def peer_of(transport: asyncio.BaseTransport | None) -> str:
    peer = None if transport is None else transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""
