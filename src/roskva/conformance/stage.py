"""Plays the server's side of the transcripts for a client: an HTTP server, and what a driver of that client must do next.

The answers are those of the real cores (`testing.joined`). `POST /conformance/next` is for the driver, `/v1/channel` for the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
from aiohttp import web

from roskva.conformance import transcripts as script
from roskva.conformance.judge import APPLICATION, DEVICE, Judge
from roskva.conformance.outcome import FAILED, PASSED, SKIPPED, Difference, Outcome
from roskva.conformance.transcripts import SLOW_S, Deed, Step, Transcript, names_of
from roskva.model import ObjectKey, Update, name_from_text, name_to_text, object_key
from roskva.protocol.messages import ClientMessage, Init, ServerMessage, decode_server, encode
from roskva.testing.joined import Server

PULSE_S: Final = 0.02
WAIT_S: Final = 0.2  # how long a driver's question is kept waiting: it also brings what the client told
DRIVER_S: Final = 60.0  # without a question, and the driver is taken for gone
ASK_S: Final = 0.2
QUIET_S: Final = 0.5
BODY_BYTES_MAX: Final = 4 << 20

# Pauses that a client must keep to, short, so that a run is.
CONFIG: Final = {"retry_min_s": 0.3, "retry_max_s": 2.0, "connect_min_s": 0.1, "connect_max_s": 1.0}

_FOR_THE_DRIVER: Final = {
    script.START: "start",
    script.END: "end",
    script.SIGN_OUT: "sign-out",
    script.REGISTER: "register",
    script.REGISTER_MANY: "register",
    script.UNREGISTER: "unregister",
    script.BUSY: "busy",
    script.DONE: "done",
}


class Stage:
    """`async with` it, then `run`."""

    def __init__(self, host: str, port: int, patience_s: float) -> None:
        self._host = host
        self._port = port
        self._patience_s = patience_s
        self._orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._asked_s = 0.0  # when the driver last asked
        self._asking = 0
        self._driven = asyncio.Event()
        self._fault: Difference | None = None
        self._open = False
        self._server = Server()
        self._judge: Judge | None = None
        self._lines: dict[int, tuple[web.WebSocketResponse, list[ServerMessage]]] = {}
        self._began_s = 0.0
        self._runner: web.AppRunner | None = None
        self._pulse: asyncio.Task[None] | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        application = web.Application(client_max_size=BODY_BYTES_MAX)
        application.add_routes([web.get("/v1/channel", self._channel), web.post("/conformance/next", self._next)])
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://{self._host}:{port}"
        self._pulse = asyncio.create_task(self._beat(), name="conformance-pulse")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._pulse is not None:
            self._pulse.cancel()
            await asyncio.gather(self._pulse, return_exceptions=True)
        await self._break()
        if self._runner is not None:
            await self._runner.cleanup()

    async def run(self, transcripts: Sequence[Transcript], slow: bool, told: Callable[[Outcome], None]) -> list[Outcome]:
        """All of them, one after the other. Waits for the driver's first question as long as it takes."""
        outcomes = []
        await self._driven.wait()
        for transcript in transcripts:
            if transcript.seconds > SLOW_S and not slow:
                outcome = Outcome(transcript.name, SKIPPED, f"takes {transcript.seconds:.0f} s: --slow")
            else:
                outcome = await self._play(transcript)
            outcomes.append(outcome)
            told(outcome)
        self._order("finished", passed=sum(one.result == PASSED for one in outcomes), failed=sum(one.result == FAILED for one in outcomes))
        with contextlib.suppress(Difference):
            await self._taken(asked_again=False)
        return outcomes

    async def _play(self, transcript: Transcript) -> Outcome:
        config = decode_server(
            json.dumps({"config": CONFIG | {n: json.loads(v) for n, v in transcript.configured.items()}}).encode()
        ).config
        assert config is not None
        self._server = Server(config=config, registrations_max=config.registrations_max)
        self._began_s = asyncio.get_running_loop().time()
        self._judge = judge = Judge(transcript, config)
        self._fault, self._open = None, True
        deed = transcript.steps[0].deed
        try:
            self._order("scenario", name=transcript.name, title=transcript.title)
            for step in transcript.steps:
                deed = step.deed
                await self._step(judge, step)
            await self._until(lambda: judge.check_told(final=False), lambda: judge.check_told(final=True))
            await self._quiet(QUIET_S)
            judge.step_done(())
            self._order("end")
            await self._taken()
        except Difference as difference:
            self._judge, self._open = None, False  # what this client still tells is of no transcript, least of all of the next
            self._order("end")
            with contextlib.suppress(Difference):
                await self._taken()
            return Outcome(transcript.name, FAILED, f"after `{deed.text}`: {difference}")
        finally:
            self._judge, self._open = None, False
            await self._break()
        return Outcome(transcript.name, PASSED)

    async def _step(self, judge: Judge, step: Step) -> None:
        deed = step.deed
        if deed.kind == script.ASK:
            await self._ask(judge, step.told[-1])
            return
        judge.follow(deed)
        if deed.kind in _FOR_THE_DRIVER:
            held = deed.words.get("version")
            self._order(_FOR_THE_DRIVER[deed.kind], text=deed.text, names=[name_to_text(one) for one in names_of(deed)], version=held)
            await self._taken()
        await self._happens(deed)

        def missing() -> None:
            absent = judge.missing(step.lines)
            if absent:
                more = f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
                raise Difference(f"expected of the client within {self._patience_s:g} s: {absent[0]}{more}")
            raise Difference("the client's last summary is not that of what the application wishes for")

        await self._until(lambda: not judge.missing(step.lines) and judge.agrees(step.lines) and self._agreed(step), missing)
        judge.step_done(step.lines)

    def _agreed(self, step: Step) -> bool:
        """Where the transcript shows a sync, by whatever way: the server has what the client wishes for."""
        syncs = any(isinstance(line, ClientMessage) and line.sync is not None for line in step.lines)
        last = self._judge.last if self._judge is not None else None
        return (
            not syncs
            or last is None
            or any(row.digest.summary() == last.summary for row in self._server.clients())
            or not self._server.clients()
        )

    async def _happens(self, deed: Deed) -> None:
        """What the network, the backend and the service do by themselves."""
        words, server = deed.words, self._server
        if deed.kind == script.BREAK:
            self._open = False
            await self._break()
        elif deed.kind == script.CONNECT:
            self._open = True
        elif deed.kind == script.PUBLISH:
            server.feed.append(Update(_object(words["name"]), int(words["version"]), words.get("source", "")))
        elif deed.kind == script.CLONE:
            self._clone()
        elif deed.kind == script.COLLECT:
            for row in server.clients():
                server.forget(row.client)
        elif deed.kind == script.WAIT:
            await self._quiet(float(words["seconds"]))

    def _clone(self) -> None:
        """Another process with the client's state: it handshakes and speaks, and the client is superseded."""
        session = next(iter(self._server.sessions.values()), None)
        if session is None:
            raise Difference("the client is not connected, and should be")
        outbox: list[ServerMessage] = []
        init = Init(nonce="of-the-other-process", application=APPLICATION, device=DEVICE, prior=session.token)
        self._server.receive(outbox, ClientMessage(init=init))
        assert self._judge is not None
        self._judge.granted(outbox[-1].token, to_the_client=False)
        self._server.receive(outbox, ClientMessage(token=outbox[-1].token, summary=outbox[-1].summary))

    async def _ask(self, judge: Judge, wanted: str) -> None:
        """Until the client says so, or patience ends: what it must hear first may still be on its way."""
        until_s = asyncio.get_running_loop().time() + self._patience_s
        while True:
            self._order("in-sync")
            await self._taken()
            await self._quiet(ASK_S)
            if judge.last_answer() == wanted:
                return
            if asyncio.get_running_loop().time() > until_s:
                raise Difference(f"asked whether it is in sync, the client says {judge.last_answer()!r}; the transcript says {wanted!r}")

    async def _until(self, true: Callable[[], bool], otherwise: Callable[[], object]) -> None:
        until_s = asyncio.get_running_loop().time() + self._patience_s
        while not true():
            if asyncio.get_running_loop().time() > until_s:
                otherwise()
                raise Difference(f"the server and the client do not agree within {self._patience_s:g} s")
            await self._quiet(PULSE_S)
        await self._quiet(0.0)

    async def _quiet(self, seconds: float) -> None:
        until_s = asyncio.get_running_loop().time() + seconds
        while True:
            if self._fault is not None:
                raise self._fault
            if self._pulse is not None and self._pulse.done():
                self._pulse.result()  # a defect of this server, not of the client: nothing would be said any more
            left_s = until_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                return
            await asyncio.sleep(min(left_s, 0.1))

    # The driver.

    def _order(self, kind: str, **more: Any) -> None:
        extra = {"application": APPLICATION, "device": DEVICE, "url": self.url} if kind == "start" else {}
        self._orders.put_nowait({"do": kind, **{name: value for name, value in more.items() if value not in (None, [])}, **extra})

    async def _taken(self, asked_again: bool = True) -> None:
        """The driver has taken all that it was told, and has done it: it asks again."""
        while not self._orders.empty() or (asked_again and not self._asking):
            idle_s = asyncio.get_running_loop().time() - self._asked_s
            if idle_s > DRIVER_S:
                while not self._orders.empty():
                    self._orders.get_nowait()
                raise Difference(f"the driver has asked for nothing to do for {DRIVER_S:.0f} s")
            await asyncio.sleep(PULSE_S)

    async def _next(self, request: web.Request) -> web.Response:
        """Body: {"told": [...]}, what the client told its application since the last time. Answer: what to do."""
        self._asked_s = asyncio.get_running_loop().time()
        self._driven.set()
        try:
            body = await request.json() if request.can_read_body else {}
            told = body.get("told", []) if isinstance(body, dict) else None
        except ValueError:
            told = None
        if not isinstance(told, list) or not all(isinstance(line, str) for line in told):
            return web.json_response({"error": 'the body should look like {"told": ["notify: hello, version 7"]}'}, status=400)
        if self._judge is not None:
            self._judge.told(told)
        self._asking += 1
        try:
            async with asyncio.timeout(WAIT_S):  # not wait_for, in which an order is taken while `_asking` still says otherwise
                order = await self._orders.get()
        except TimeoutError:
            order = {"do": "ask-again"}
        finally:
            self._asking -= 1
            self._asked_s = asyncio.get_running_loop().time()
        return web.json_response(order)

    # The client.

    async def _channel(self, request: web.Request) -> web.StreamResponse:
        if not self._open:
            return web.Response(status=503, text="The transcript has no connection now.")
        socket = web.WebSocketResponse(compress=False, max_msg_size=BODY_BYTES_MAX)
        await socket.prepare(request)
        outbox: list[ServerMessage] = []
        self._lines[id(outbox)] = socket, outbox
        try:
            async for frame in socket:
                if frame.type != aiohttp.WSMsgType.TEXT:
                    self._fail(Difference("the client sent a frame that is not text"))
                elif self._judge is not None:
                    self._server.receive(outbox, self._judge.heard(frame.data.encode()))
        except Difference as difference:
            self._fail(difference)
        finally:
            self._hung_up(outbox)
        return socket

    def _fail(self, difference: Difference) -> None:
        self._fault = self._fault or difference

    def _hung_up(self, outbox: list[ServerMessage]) -> None:
        self._lines.pop(id(outbox), None)
        for client, session in list(self._server.sessions.items()):
            if session.channel is outbox:
                del self._server.sessions[client]

    async def _break(self) -> None:
        for socket, outbox in list(self._lines.values()):
            self._hung_up(outbox)
            await socket.close(code=1001)

    async def _beat(self) -> None:
        """What is to be sent is sent; if nothing is, the server works a step. In between a client has time to acknowledge."""
        while True:
            self._server.now_s = asyncio.get_running_loop().time() - self._began_s
            self._server.tick()
            said = False
            for socket, outbox in list(self._lines.values()):
                messages, outbox[:] = list(outbox), []
                for message in messages:
                    said = True
                    if self._judge is not None:
                        self._judge.answered(message)
                    if not socket.closed:
                        # A client may drop its connection at any moment: then this was said to nobody.
                        with contextlib.suppress(ConnectionError, aiohttp.ClientError):
                            await socket.send_str(encode(message).decode())
            if not said:
                self._server.work()
            await asyncio.sleep(PULSE_S)


def _object(name: str) -> ObjectKey:
    return object_key(APPLICATION, 0, name_from_text(name))
