"""Which pages may call from browsers: those of the gateway's own origin, and those that an application lists (docs/http.md, Browsers).

Whoever sends no Origin is no page. A page of another origin must be listed by some application to be heard at all, and by the very
application that it names then; what is for operators is never for it. Which origin is the gateway's own tells Host. On a port of this
machine a name in it counts only if a proxy sent it: else any site could let its own name point here, and its pages would be ours.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from aiohttp import web

from roskva.address import host_and_port, is_loopback
from roskva.config import ApplicationSettings, Settings
from roskva.errors import OriginRefused
from roskva.gateway.addresses import Addresses, peer_of
from roskva.gateway.routing import error_message
from roskva.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from roskva.gateway.routing import Connection

MAX_AGE_S: Final = 600  # for which a browser need not ask again before it calls
ORIGIN: Final = web.RequestKey("origin", str)  # of a page from elsewhere that may call; not there, or "": of our own, or no page

# What pages of other origins may be allowed to call; everything else is not for them.
_OPEN_PATHS: Final = frozenset(
    {"/v1/publish", "/v1/invalidate", "/v1/channel", "/v1/channels", "/v1/openapi.json", "/healthz", "/readyz", "/roskva.js"}
)
_PORTS: Final = {"http": "80", "https": "443"}
_OPEN_BELOW: Final = ("/v1/objects/", "/v1/channels/")


class Origins:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._addresses = Addresses(settings)
        self._only_here = is_loopback(host_and_port(settings.listen)[0])

    def foreign(self, origin: str, host: str, secure: bool, transport: asyncio.BaseTransport | None, forwarded: str) -> str | None:
        """ "" for a page of our own or none, the origin itself if it is an application's, None if nobody knows it."""
        if not origin:
            return ""
        origin = origin.lower()
        scheme, _, place = origin.partition("://")
        # What came over TLS came to a page of https: a page that anybody on the way could have changed is another one.
        if place and place == host.lower() and (scheme == "https" if secure else self._is_ours(scheme, place, transport, forwarded)):
            return ""
        return sys.intern(origin) if self._is_listed(origin, "") else None

    def _is_ours(self, scheme: str, place: str, transport: asyncio.BaseTransport | None, forwarded: str) -> bool:
        """Whether a page of the place that Host names, on a port without TLS, can only have come from here."""
        name, port = _split(place)
        port = port or _PORTS.get(scheme, "")
        if not self._only_here or is_loopback(name):
            return True
        # A page can write X-Forwarded-For itself, but not Host: if it came to this port by its own name, this port is in it.
        own = None if transport is None else transport.get_extra_info("sockname")
        return bool(forwarded) and self._addresses.is_proxy(peer_of(transport)) and own is not None and port != str(own[1])

    def end_unlisted(self, connections: Iterable[Connection]) -> None:
        """After a change of the settings: close those of pages that nobody lists any more, or not the application that they speak with."""
        for connection in connections:
            origin, application = connection.party
            if origin and not self._is_listed(origin, application):
                self._metrics.origins_refused += 1
                connection.send(error_message(OriginRefused(origin), connection.token))
                connection.close(OriginRefused.code)

    def _is_listed(self, origin: str, application: str) -> bool:
        """By this application; without one, by any."""
        known = self._settings.applications
        asked = [known[application]] if application in known else [] if application else known.values()
        return any(_lists(one, origin) for one in asked)

    def check(self, origin: str, application: str) -> None:
        """Whether a page of this origin may speak with this application. Raises OriginRefused."""
        if origin and not (application and self._is_listed(origin, application)):
            self.refuse(origin)

    def refuse(self, origin: str) -> None:
        self._metrics.origins_refused += 1
        raise OriginRefused(origin)

    def admit(self, request: web.Request) -> web.Response | None:
        """Notes the origin of a request, and answers a browser's question beforehand. Raises OriginRefused."""
        named = request.headers.get("Origin")
        if named is None:
            return None
        fields = request.headers
        origin = self.foreign(named, fields.get("Host", ""), request.secure, request.transport, fields.get("X-Forwarded-For", ""))
        if origin == "":
            return None
        if origin is None or not (request.path in _OPEN_PATHS or request.path.startswith(_OPEN_BELOW)):
            self.refuse(named)
            return None
        request[ORIGIN] = origin
        if request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers:
            return None
        headers = {
            "Access-Control-Allow-Methods": "GET, POST, DELETE",
            "Access-Control-Allow-Headers": "Authorization, Content-Type",
            "Access-Control-Max-Age": str(MAX_AGE_S),
        }
        return web.Response(status=204, headers=headers)


def _split(host: str) -> tuple[str, str]:
    """Name and port of a Host header; without a port, an empty one."""
    if host.startswith("["):
        name, _, port = host[1:].partition("]")
        return name, port.removeprefix(":")
    name, _, port = host.partition(":")
    return name, port


def _lists(application: ApplicationSettings, origin: str) -> bool:
    return any(listed.lower() == origin for listed in application.origins)


async def tell_browser(request: web.Request, response: web.StreamResponse) -> None:
    """When an answer's head is about to be sent: the page may read it."""
    origin = request.get(ORIGIN, "")
    if origin:
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = "Retry-After"
        response.headers["Vary"] = "Origin"
