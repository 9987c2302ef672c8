"""HOST:PORT: how an address is read and written, and a socket that holds one.

Whoever listens, or only asks whether it could, goes the same way, so that `up`, `doctor` and the gateway never disagree. Must not
import anything of Roskva but its errors.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Final

from roskva.errors import AddressInUse, InvalidSetting

PORT_MAX: Final = 65_535


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of HOST:PORT; an IPv6 address stands in brackets. Raises InvalidSetting for what is of another form."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > PORT_MAX:
        raise InvalidSetting(f"The address {address!r} is not of the form HOST:PORT.")
    return host.strip("[]"), int(port)


def address_of(host: str, port: int) -> str:
    """HOST:PORT, from its parts."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bound_socket(address: str, beside_others: bool = False) -> socket.socket:
    """A socket that holds the address and accepts nobody yet; port 0 becomes a free one. `beside_others`: also if others of this user
    hold it, all of whom must have allowed that (gateway/sharing.py).

    AddressInUse if another one listens there, InvalidSetting if nobody could.
    """
    host, port = host_and_port(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:  # the latter for what cannot be a host's name at all, such as a..b
        reason = error.strerror if isinstance(error, OSError) else "it is no host's name"
        raise InvalidSetting(f"The host of the address {address!r} cannot be found: {reason}.") from None
    holder = socket.socket(family, kind, protocol)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a predecessor may linger
        if beside_others:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(place)
    except OSError as error:
        holder.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(f"Something else listens on {address}.") from None
        raise InvalidSetting(f"It is not possible to listen on {address}: {error.strerror}.") from None
    return holder
