"""A small service for tests of the shells: real HTTP and WebSocket, one process, everything in memory.

It speaks the protocol, keeps clients by id, and delivers what is published; it can be told to misbehave.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import WSMsgType, web

from roskva.protocol import messages
from roskva.protocol.messages import (
    ClientMessage,
    Config,
    CredentialState,
    Grant,
    Notify,
    ServerMessage,
    StartAnew,
    Status,
    SyncRequest,
)
from roskva.protocol.summaries import SetDigest, bucket_of, bucket_summaries, differing_buckets

# Retries are slow, so that a loaded machine repeats nothing; connecting again is quick.
CONFIG = Config(keepalive_s=5, retry_min_s=3, retry_max_s=6, connect_min_s=0.02, connect_max_s=0.2)


class FakeClient:
    def __init__(self, number: int) -> None:
        self.number = number
        self.session = 0
        self.registered: dict[str, int] = {}  # object -> seqno
        self.waiting: dict[tuple[str, int], int | None] = {}
        self.socket: web.WebSocketResponse | None = None
        self.fresh = False  # granted a session that has not spoken yet

    @property
    def token(self) -> str:
        return f"c{self.number}.s{self.session}"


class FakeGateway:
    def __init__(self) -> None:
        self.port = 0
        self.config = CONFIG
        self.clients: list[FakeClient] = []
        self.versions: dict[str, int] = {}
        self.received: list[ClientMessage] = []
        self.acks: list[messages.Ack] = []
        self.publishes: list[dict[str, Any]] = []
        self.answers: list[tuple[int, Any]] = []  # what the next publishes are answered with
        self.refuse: dict[str, Status] = {}
        self.silent = False  # take messages, answer nothing
        self.users: dict[str, float] | None = None  # credentials that are accepted, and for how long; None: nobody is asked
        self.why_refused = "credential-refused"
        self.shown: list[str] = []  # credentials, as they came
        self._admitted: set[web.WebSocketResponse] = set()
        self.publish_headers: list[dict[str, str]] = []
        self.retry_after = ""  # a header of the answers to publishes
        self._seqnos = itertools.count(1)
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/v1/channel", self._channel)
        app.router.add_post("/v1/publish", self._publish)
        self._runner = web.AppRunner(app, shutdown_timeout=0.2, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.disconnect_all()
        assert self._runner is not None
        await self._runner.cleanup()

    async def disconnect_all(self) -> None:
        for client in self.clients:
            if client.socket is not None:
                await client.socket.close()

    async def lose_clients(self) -> None:
        """Forget everything about clients, as after the loss of a table."""
        self.clients = []

    async def expire(self, client: FakeClient) -> None:
        """The user's credential has ended."""
        if client.socket is not None:
            self._admitted.discard(client.socket)
            await self._want(client.socket, client.token, "credential-expired")

    async def revoke(self, client: FakeClient, name: str) -> None:
        self._unregister(client, name)
        await self.say(client, status=[Status(object=name, state=messages.FAILED, code="not-authorized")])

    @staticmethod
    async def _want(socket: web.WebSocketResponse, token: str, code: str) -> None:
        state = CredentialState(wanted=True, code=code, message="Not so.")
        await socket.send_str(messages.encode(ServerMessage(token=token, credential=state)).decode())

    async def _publish(self, request: web.Request) -> web.Response:
        self.publish_headers.append(dict(request.headers))
        body = json.loads(await request.read())
        self.publishes.append(body)
        if self.answers:
            status, answer = self.answers.pop(0)
            if answer is None:
                request.transport.close()  # type: ignore[union-attr]
                return web.Response()
            return web.json_response(answer, status=status, headers={"Retry-After": self.retry_after} if self.retry_after else None)
        for update in body["updates"]:
            await self.publish(update["object"], int(update["version"]))
        return web.json_response({"results": [{"ok": True} for _ in body["updates"]]})

    async def publish(self, name: str, version: int) -> None:
        self.versions[name] = max(version, self.versions.get(name, -1))
        for client in list(self.clients):
            if name in client.registered:
                await self._owe(client, [(name, version)])

    async def unknown(self, name: str) -> None:
        for client in list(self.clients):
            if name in client.registered:
                await self._owe(client, [(name, None)])

    async def _owe(self, client: FakeClient, told: list[tuple[str, int | None]]) -> None:
        notify = []
        for name, version in told:
            seqno = client.registered[name] if version is not None else next(self._seqnos)
            client.waiting[name, seqno] = version
            notify.append(self._notify(name, seqno, version))
        if notify:
            await self.say(client, notify=notify)

    @staticmethod
    def _notify(name: str, seqno: int, version: int | None) -> Notify:
        return Notify(object=name, seqno=str(seqno), version=None if version is None else str(version))

    async def redeliver(self) -> None:
        for client in self.clients:
            notify = [self._notify(name, seqno, version) for (name, seqno), version in client.waiting.items()]
            await self.say(client, notify=notify)

    async def say(self, client: FakeClient, **fields: Any) -> None:
        if client.socket is None or client.socket.closed or self.silent:
            return
        summary = SetDigest(name.encode() for name in client.registered).summary()
        message = ServerMessage(**{"token": client.token, "summary": summary, "unsettled": len(client.waiting), **fields})
        await client.socket.send_str(messages.encode(message).decode())

    async def _channel(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for frame in socket:
            if frame.type is WSMsgType.TEXT:
                message = messages.decode_client(frame.data.encode(), 1 << 20)
                self.received.append(message)
                if not self.silent:
                    await self._heard(socket, message)
        return socket

    async def _heard(self, socket: web.WebSocketResponse, message: ClientMessage) -> None:
        judged: dict[str, Any] = {}
        if self.users is not None:
            if message.credential:
                self.shown.append(message.credential)
            if message.credential in self.users:
                self._admitted.add(socket)
                judged = {"credential": CredentialState(good_s=self.users[message.credential])}
            elif message.credential or socket not in self._admitted:
                await self._want(socket, message.token, self.why_refused if message.credential else "credential-required")
                return
        if message.init is not None:
            await self._handshake(socket, message.init, judged)
            return
        client = next((one for one in self.clients if one.token == message.token), None)
        if client is None:
            known = any(one.token.split(".")[0] == message.token.split(".")[0] for one in self.clients)
            anew = StartAnew(code="session-superseded" if known else "token-invalid", keep=known)
            await socket.send_str(messages.encode(ServerMessage(token=message.token, start_anew=anew)).decode())
            return
        if message.forget:
            self.clients.remove(client)
            anew = StartAnew(code="token-invalid", keep=False)
            await socket.send_str(messages.encode(ServerMessage(token=message.token, start_anew=anew)).decode())
            return
        returned = client.fresh or client.socket is not socket
        client.socket, client.fresh = socket, False
        for ack in message.acks:
            self.acks.append(ack)
            client.waiting.pop((ack.object, int(ack.seqno)), None)
        before = set(client.registered)
        statuses = [self._register(client, one.object) for one in message.register]
        for gone in message.unregister:
            self._unregister(client, gone.object)
            statuses.append(Status(object=gone.object, state=messages.UNREGISTERED))
        request = None if message.sync is None else self._sync(client, message.sync, statuses)
        await self.say(client, status=statuses, sync_request=request, **judged)
        new = [name for name in client.registered if name not in before]
        await self._owe(client, [(name, self.versions.get(name)) for name in new])
        if returned:
            await self.redeliver()

    @staticmethod
    def _unregister(client: FakeClient, name: str) -> None:
        client.registered.pop(name, None)
        client.waiting = {key: version for key, version in client.waiting.items() if key[0] != name}

    def _register(self, client: FakeClient, name: str) -> Status:
        if name in self.refuse:
            return self.refuse[name]
        client.registered.setdefault(name, next(self._seqnos))
        return Status(object=name, state=messages.REGISTERED)

    def _sync(self, client: FakeClient, sync: messages.Sync, statuses: list[Status]) -> SyncRequest | None:
        if sync.summaries is not None:
            mine = bucket_summaries(name.encode() for name in client.registered)
            return SyncRequest(op=sync.op, buckets=differing_buckets(mine, sync.summaries))
        stated = {one.object for one in sync.objects or []}
        for name in [name for name in client.registered if name not in stated]:
            if sync.buckets is None or bucket_of(name.encode()) in sync.buckets:
                self._unregister(client, name)
        statuses += [self._register(client, name) for name in stated if name not in client.registered]
        return None

    async def _handshake(self, socket: web.WebSocketResponse, init: messages.Init, judged: dict[str, Any]) -> None:
        if init.application != "demo":
            report = messages.ErrorReport(code="unknown-application", message="There is no such application here.")
            await socket.send_str(messages.encode(ServerMessage(error=report)).decode())
            return
        prior = (init.prior or "").split(".")[0]
        client = next((one for one in self.clients if f"c{one.number}" == prior), None)
        if client is None:
            client = FakeClient(len(self.clients) + 1)
            self.clients.append(client)
        if client.socket is not None and client.socket is not socket and not client.socket.closed:
            old = messages.encode(ServerMessage(token=client.token, start_anew=StartAnew(code="session-superseded", keep=True)))
            await client.socket.send_str(old.decode())
        client.session += 1
        client.socket, client.fresh = socket, True
        await self.say(client, grant=Grant(nonce=init.nonce, token=client.token), config=self.config, **judged)


class GatewayThread:
    """The same in a thread of its own, for callers that block."""

    def __init__(self) -> None:
        self.gateway = FakeGateway()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> FakeGateway:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.gateway.__aenter__(), self._loop).result(10)
        return self.gateway

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self.gateway.__aexit__(None, None, None), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


def with_config(gateway: FakeGateway, **changes: Any) -> None:
    gateway.config = msgspec.structs.replace(gateway.config, **changes)
