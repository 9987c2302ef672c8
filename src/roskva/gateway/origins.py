"""Which pages may call from browsers: those of the gateway's own origin, and those that an application lists (docs/http.md, Browsers).

Whoever sends no Origin is no page. A page of another origin must be listed by some application to be heard at all, and by the very
application that it names then; what is for operators is never for it.
"""

from __future__ import annotations

import sys
from typing import Final

from aiohttp import web

from roskva.config import ApplicationSettings, Settings
from roskva.errors import OriginRefused
from roskva.telemetry.metrics import Metrics

MAX_AGE_S: Final = 600  # for which a browser need not ask again before it calls
ORIGIN: Final = web.RequestKey("origin", str)  # of a page from elsewhere that may call; not there, or "": of our own, or no page

# What pages of other origins may be allowed to call; everything else is not for them.
_OPEN_PATHS: Final = frozenset(
    {"/v1/publish", "/v1/invalidate", "/v1/channel", "/v1/channels", "/v1/openapi.json", "/healthz", "/readyz", "/roskva.js"}
)
_OPEN_BELOW: Final = ("/v1/objects/", "/v1/channels/")


class Origins:
    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics

    def foreign(self, origin: str, host: str, secure: bool) -> str | None:
        """ "" for a page of our own or none, the origin itself if it is an application's, None if nobody knows it."""
        if not origin:
            return ""
        origin = origin.lower()
        scheme, _, place = origin.partition("://")
        # What came over TLS came to a page of https: a page that anybody on the way could have changed is another one.
        if place and place == host.lower() and (scheme == "https" or not secure):
            return ""
        listed = any(_lists(application, origin) for application in self._settings.applications.values())
        return sys.intern(origin) if listed else None

    def check(self, origin: str, application: str) -> None:
        """Whether a page of this origin may speak with this application. Raises OriginRefused."""
        if origin:
            settings = self._settings.applications.get(application)
            if settings is None or not _lists(settings, origin):
                self.refuse(origin)

    def refuse(self, origin: str) -> None:
        self._metrics.origins_refused += 1
        raise OriginRefused(origin)

    def admit(self, request: web.Request) -> web.Response | None:
        """Notes the origin of a request, and answers a browser's question beforehand. Raises OriginRefused."""
        named = request.headers.get("Origin")
        if named is None:
            return None
        origin = self.foreign(named, request.headers.get("Host", ""), request.secure)
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


def _lists(application: ApplicationSettings, origin: str) -> bool:
    return any(listed.lower() == origin for listed in application.origins)


async def tell_browser(request: web.Request, response: web.StreamResponse) -> None:
    """When an answer's head is about to be sent: the page may read it."""
    origin = request.get(ORIGIN, "")
    if origin:
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = "Retry-After"
        response.headers["Vary"] = "Origin"
