"""HTTP: publishing, looking at objects, status and metrics, and the demo page (docs/http.md describes every route).

Every error has one form, {"error": {"code", "message", "transient", "retry_after_s"}}, and the status of its class. What
was not foreseen becomes "internal" and a log entry: no stack trace reaches a client. It is long: every route stands here.
"""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from roskva.config import Settings
from roskva.errors import (
    EncodingRefused,
    InvalidName,
    MalformedMessage,
    MessageTooLarge,
    RateLimited,
    RoskvaError,
    Unavailable,
    UnknownPath,
)
from roskva.gateway.answering import SERVER, Plain, written, written_ok
from roskva.gateway.commands import Commands
from roskva.gateway.details import PAGE_DEFAULT, Details, Page, with_more_owed
from roskva.gateway.disk import DiskWatch
from roskva.gateway.inspection import Inspection, release
from roskva.gateway.intake import Intake
from roskva.gateway.openapi import document
from roskva.gateway.origins import ORIGIN, Origins, tell_browser
from roskva.gateway.peers import Peers
from roskva.gateway.permission import Asked, MayPublish, Permission
from roskva.gateway.polling import Polling
from roskva.gateway.publish import Publishing, error_object
from roskva.gateway.server import CHANNEL_PATH, Port
from roskva.gateway.trusted import TRUSTED_PATH, TrustedLine, check_trust
from roskva.gateway.users import Users
from roskva.gateway.websocket import HttpConnection
from roskva.model import PUBLISHED_HEADER, ClientId
from roskva.telemetry.metrics import Metrics, merged

log = logging.getLogger(__name__)

BODY_S: Final = 30.0  # for the body of a request to arrive
COMMAND_BYTES_MAX: Final = 16 << 10  # of those that name one thing
READY_S: Final = 1.0  # for which an answer to /readyz counts: anybody may ask, and it costs a look at table, feed and pipeline
STATIC: Final = Path(__file__).with_name("static")
_PAGE_FILES: Final = {"demo.html": "text/html", "demo.css": "text/css", "demo.js": "text/javascript", "roskva.js": "text/javascript"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def error_response(error: RoskvaError, status: int | None = None) -> web.Response:
    response = json_response({"error": error_object(error)}, status or error.status)
    if isinstance(error, Unavailable):
        response.headers["Retry-After"] = f"{max(1, round(error.retry_after_s))}"
    if response.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _published(status: int, answer: bytes) -> web.Response:
    response = web.Response(body=answer, status=status, content_type="application/json")
    if status == 503:
        response.headers["Retry-After"] = "1"
    return response


async def _named_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RoskvaError as error:
        return error_response(error)
    except web.HTTPMethodNotAllowed as error:
        response = error_response(UnknownPath(request.method, request.path), 405)
        response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
        return response
    except web.HTTPNotFound:
        return error_response(UnknownPath(request.method, request.path))
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return error_response(MalformedMessage(f"The request was refused: {error.reason}."), error.status)
    except (asyncio.CancelledError, ConnectionError):
        raise
    except Exception:
        resource = request.match_info.route.resource
        # Not the path itself: names of objects and users are in it.
        log.exception("%s %s failed", request.method, "?" if resource is None else resource.canonical)
        return error_response(RoskvaError("The request could not be handled."))


@web.middleware
async def named_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """For who is asked by other gateways only (gateway/door.py)."""
    return await _named_errors(request, handler)


async def _without_versions(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = SERVER


def _middleware(origins: Origins, metrics: Metrics) -> Middleware:
    """What every request passes first."""

    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        asked_beforehand = origins.admit(request)
        if asked_beforehand is not None:
            return asked_beforehand
        # Nothing is ever unpacked here: a small body could become a very large one.
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding.strip().lower() != "identity":
            metrics.encodings_refused += 1
            raise EncodingRefused(encoding)
        return await handler(request)

    @web.middleware
    async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await _named_errors(request, partial(checked, handler=handler))

    return answered


@dataclass(slots=True)
class Routes:
    settings: Settings
    publishing: Publishing
    inspection: Inspection
    registry: CollectorRegistry
    metrics: Metrics
    intake: Intake
    commands: Commands
    details: Details
    disk: DiskWatch
    permission: Permission
    users: Users
    peers: Peers
    port: Port | None = None  # set by the service: the port needs the routes first
    trusted_key: str = ""  # of servers that may carry many clients; empty: there are none

    def application(self) -> web.Application:
        size_max = max(self.settings.publish_bytes_max, self.settings.message_bytes_max)
        application = web.Application(middlewares=[_middleware(self._origins(), self.metrics)], client_max_size=size_max)
        application.on_response_prepare.append(tell_browser)
        application.on_response_prepare.append(_without_versions)
        application.add_routes(self.polling(self.peers).routes())
        application.add_routes(
            [
                web.post("/v1/publish", self.publish),
                web.post("/v1/reset", self._for_operators(self.reset)),
                web.post("/v1/invalidate", self.invalidate),
                web.get("/v1/objects/{application}/{name:.+}", self.object),
                web.post("/v1/erase", self._for_operators(self.erase)),
                web.get("/v1/inspect/users/{application}/{user:.+}", self._for_operators(self.inspect_user)),
                web.get("/v1/inspect/clients/{id}", self._for_operators(self.inspect_client)),
                web.get("/v1/inspect/objects/{application}/{name:.+}", self._for_operators(self.inspect_object)),
                web.get("/v1/inspect/latency", self._for_operators(self.inspect_latency)),
                web.get(CHANNEL_PATH, self.channel, allow_head=False),
                web.get(TRUSTED_PATH, self.trusted, allow_head=False),
                web.get("/v1/status", self._for_operators(self.status)),
                web.get("/v1/dead-letters", self._for_operators(self.dead_letters)),
                web.get("/v1/openapi.json", self.openapi),
                web.get("/healthz", self.healthz),
                web.get("/readyz", self.readyz),
                web.get("/metrics", self._for_operators(self.prometheus)),
                web.get("/", self.page),
                web.get("/demo.css", self.page),
                web.get("/demo.js", self.page),
                web.get("/roskva.js", self.page),
            ]
        )
        return application

    def polling(self, peers: Peers | None) -> Polling:
        """`peers`: to whom requests for connections that they hold are passed on; None: to nobody."""
        return Polling(self.port, self._body, peers)

    def _for_operators(self, handler: Handler) -> Handler:
        """Their key is looked at before anything else."""

        async def checked(request: web.Request) -> web.StreamResponse:
            self.permission.administer(request)
            return await handler(request)

        return checked

    def _origins(self) -> Origins:
        return Origins(self.settings, self.metrics)

    def _may_publish(self, request: web.Request) -> MayPublish:
        """Whose key it is; and for a page of another origin, whether the application lists that."""
        may, origin = self.permission.publish(request), request.get(ORIGIN, "")
        if not origin:
            return may

        def may_from_there(application: str) -> None:
            self._origins().check(origin, application)
            may(application)

        return may_from_there

    async def publish(self, request: web.Request) -> web.StreamResponse:
        began_s = time.perf_counter()
        may = self._may_publish(request)
        self.disk.check()
        length = self.settings.publish_bytes_max if request.content_length is None else request.content_length
        with self.intake.request(min(length, self.settings.publish_bytes_max), self._publisher(request)):
            body = await self._body(request, self.settings.publish_bytes_max)
            status, answer = await self.publishing.publish(body, may, _published_us(request.headers))
        self.metrics.publish_ms.observe((time.perf_counter() - began_s) * 1000)
        return _published(status, answer)

    async def publish_plainly(self, asked: Plain, body: bytes) -> bytes:
        """A publish on the short way (gateway/answering.py): all bytes of the answer. The same steps as above, and raises nothing."""
        began_s = time.perf_counter()
        try:
            may = self.permission.publish(asked)
            self.disk.check()
            if len(body) > self.settings.publish_bytes_max:
                raise MessageTooLarge(len(body), self.settings.publish_bytes_max)
            with self.intake.request(len(body), self._publisher(asked)):
                status, answer = await self.publishing.publish(body, may, _published_us(asked.headers))
        except RoskvaError as error:
            return written(error_response(error))
        except Exception:
            log.exception("POST /v1/publish failed")
            return written(error_response(RoskvaError("The request could not be handled.")))
        self.metrics.publish_ms.observe((time.perf_counter() - began_s) * 1000)
        return written_ok(answer) if status == 200 else written(_published(status, answer))

    def _publisher(self, request: Asked) -> str:
        """Whose share of the room for publishing it takes: a key's; without one, an address's, if that has limits at all."""
        return self.permission.known_hash(request) or ("" if self.port is None else self.port.address_of(request))

    async def reset(self, request: web.Request) -> web.StreamResponse:
        self.disk.check()
        return json_response(await self.commands.reset(await self._body(request, COMMAND_BYTES_MAX)))

    async def invalidate(self, request: web.Request) -> web.StreamResponse:
        may = self._may_publish(request)
        self.disk.check()
        try:
            return json_response(await self.commands.invalidate(await self._body(request, COMMAND_BYTES_MAX), may))
        except RateLimited:
            self.metrics.limited_publishes += 1
            raise

    async def _body(self, request: web.Request, limit: int, arrived: Callable[[int], None] | None = None) -> bytes:
        """`arrived` is told how much is there of one that comes in pieces."""
        if request.content_length is not None and request.content_length > limit:
            raise MessageTooLarge(request.content_length, limit)
        body = bytearray()
        try:
            if request.content.is_eof():  # all of it is here already, as usual: no timer
                body += await request.content.read()
            else:
                async with asyncio.timeout(BODY_S):
                    while len(body) <= limit and (piece := await request.content.readany()):
                        body += piece
                        if arrived is not None:
                            arrived(len(body))
        except TimeoutError:
            raise MalformedMessage(f"The request's body did not arrive within {BODY_S:g} s.") from None
        if len(body) > limit:  # perhaps sent in chunks, so its size is not known
            raise MessageTooLarge(len(body), limit)
        return bytes(body)

    async def object(self, request: web.Request) -> web.StreamResponse:
        may = self._may_publish(request)
        application, name = _object_in(request, "/v1/objects/")
        may(application)
        return json_response(await self.inspection.object_version(application, name))

    async def erase(self, request: web.Request) -> web.StreamResponse:
        return json_response(await self.users.erase(await self._body(request, COMMAND_BYTES_MAX)))

    async def inspect_user(self, request: web.Request) -> web.StreamResponse:
        return json_response(
            await self.users.clients(*_object_in(request, "/v1/inspect/users/"), _page_in(request), self._online_elsewhere)
        )

    async def _online_elsewhere(self, clients: list[str]) -> dict[str, bool]:
        answers = await self.peers.ask_all("/online", msgspec.json.encode(clients)) if clients else {}
        return {client: known for answer in answers.values() if answer is not None for client, known in msgspec.json.decode(answer).items()}

    async def inspect_client(self, request: web.Request) -> web.StreamResponse:
        """By its owner, if that answers: only it knows whether the client is online. Else by the table alone."""
        owner = self.details.owner_of(ClientId(request.match_info["id"]))
        if owner is not None and self.peers.knows(owner.id):
            with suppress(Unavailable):
                return await self.peers.relay(request, owner.id)
        return await self.inspect_client_here(request)

    async def inspect_client_here(self, request: web.Request) -> web.StreamResponse:
        return json_response(await self.details.client(ClientId(request.match_info["id"]), _page_in(request)))

    async def inspect_object(self, request: web.Request) -> web.StreamResponse:
        found = await self.details.object(*_object_in(request, "/v1/inspect/objects/"), _page_in(request))
        others = await self.peers.ask_all(request.raw_path)
        return json_response(with_more_owed(found, [msgspec.json.decode(answer) for answer in others.values() if answer is not None]))

    async def inspect_object_here(self, request: web.Request) -> web.StreamResponse:
        return json_response(await self.details.object(*_object_in(request, "/v1/inspect/objects/"), _page_in(request)))

    async def inspect_latency(self, request: web.Request) -> web.StreamResponse:
        """Of one gateway; with `member`, of that one, whichever answers: those of several add up at who asks."""
        member = request.query.get("member", "")
        if self.peers.knows(member):
            return await self.peers.relay(request, member)
        return await self.inspect_latency_here(request)

    async def inspect_latency_here(self, request: web.Request) -> web.StreamResponse:
        return json_response(self.inspection.latency())

    async def channel(self, request: web.Request) -> web.StreamResponse:
        """Only what did not go to picows comes here: connections that were used before, or not a WebSocket at all."""
        if self.port is None or not _wants_websocket(request):
            return _upgrade_required()
        address = self.port.address_of(request)
        self.port.check_room(address)
        return await HttpConnection(self.port, address, request.get(ORIGIN, "")).run(request)

    async def trusted(self, request: web.Request) -> web.StreamResponse:
        check_trust(request, self.trusted_key, self.metrics)
        if self.port is None or not _wants_websocket(request):
            return _upgrade_required()
        self.port.check_room("")
        return await TrustedLine(self.port).run(request)

    async def status(self, request: web.Request) -> web.StreamResponse:
        return json_response(await self.inspection.status())

    async def dead_letters(self, request: web.Request) -> web.StreamResponse:
        limit = request.query.get("limit", "100")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 10):
            raise MalformedMessage("`limit` is not a number.")
        return json_response(await self.inspection.dead_letters(request.query.get("after", ""), int(limit)))

    async def openapi(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=_openapi(), content_type="application/json")

    async def healthz(self, request: web.Request) -> web.StreamResponse:
        return json_response({"alive": True})

    async def readyz(self, request: web.Request) -> web.StreamResponse:
        reasons = await self.inspection.unready_lately(READY_S)
        return json_response({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    async def prometheus(self, request: web.Request) -> web.StreamResponse:
        """Of all gateways on this port: a scraper cannot choose which of them answers."""
        here = self.inspection.membership.member
        sharing = [member for member in self.peers.others() if member.public == here.public]
        others = await self.peers.ask_all("/metrics", among=sharing)
        # One that was killed and started again is there twice for a while, under one name: what the living one says counts.
        sharing.sort(key=lambda member: others[member.id] is not None)
        answers = {member.name or member.id: others[member.id] for member in sharing} | {here.name or here.id: self.own_metrics()}
        return web.Response(body=merged(answers), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def own_metrics(self) -> bytes:
        return generate_latest(self.registry)

    async def page(self, request: web.Request) -> web.StreamResponse:
        name = request.path.lstrip("/") or "demo.html"
        response = web.Response(body=_page_file(name), content_type=_PAGE_FILES[name], charset="utf-8")
        response.headers["Cache-Control"] = "no-cache"
        response.headers["Content-Security-Policy"] = (
            "default-src 'self'; img-src data:; connect-src 'self' ws: wss:; frame-ancestors 'none'"
        )
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


def _published_us(headers: Mapping[str, str]) -> int:
    """When the application called its Publisher, as that says; 0: it does not, or not in our words."""
    text = headers.get(PUBLISHED_HEADER, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _wants_websocket(request: web.Request) -> bool:
    return request.headers.get("Upgrade", "").lower() == "websocket"


def _upgrade_required() -> web.Response:
    response = error_response(MalformedMessage("This is a WebSocket: the request must ask for an upgrade."), 426)
    response.headers["Upgrade"] = "websocket"
    return response


def _object_in(request: web.Request, before: str) -> tuple[str, str]:
    """Application and name, from the raw path: a name may hold a slash, or a percent sign that is not an escape of ours."""
    raw_path = request.raw_path.partition("?")[0]
    raw_application, _, raw_name = raw_path.removeprefix(before).partition("/")
    try:
        application = urllib.parse.unquote(raw_application, errors="strict")
        return application, urllib.parse.unquote(raw_name, errors="strict")
    except UnicodeDecodeError:
        raise InvalidName(raw_name, "it is not UTF-8; write it as base64: followed by base64url") from None


def _page_in(request: web.Request) -> Page:
    return Page.of(request.query.get("after", ""), request.query.get("limit", str(PAGE_DEFAULT)))


@cache
def _openapi() -> bytes:
    return msgspec.json.encode(document(release()))


def _page_file(name: str) -> bytes:
    return (STATIC / name).read_bytes()


def served(application: web.Application) -> set[tuple[str, str]]:
    """Method and path of every route, as the OpenAPI document writes them."""
    found: set[tuple[str, str]] = set()
    for route in application.router.routes():
        resource: Any = route.resource
        if route.method != "HEAD":
            found.add((route.method.lower(), resource.canonical))
    return found
