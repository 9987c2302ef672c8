"""Commands to a publisher that runs, over a Unix socket (Wormhole 5: "access state ... and give commands to the publisher").

A request is one line of JSON, {"command": NAME, ...}; the answer is one line, {"ok": true, "answer": ...} or {"ok": false, "error": CODE,
"message": TEXT}. The socket is its owner's alone. Commands; `shard` may be left out for all shards of the application:

    status                                  everything (status.py)
    flows      [application]                the flows alone
    pause      application, shard, why      nothing is sent until resume, also after a restart or by another publisher
    resume     application, shard
    rewind     application, shard, to       "oldest", "end", a position such as "1/4711", or a time in seconds since 1970
    ahead      application, shard, to       where that is, and which flows a rewind would take forward; changes nothing
    move       application, to              all its flows go to this publisher as soon as it lives; "" is what the settings say
    reassign   application, shard, member   to another process of the application, where it stays (placing.py); with back: no longer so
    remove     application                  forget its flows; it must not be among the settings any more
    set        fields of Limits, SET_TOO    rates and limits, until the next restart
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from roskva.capture.limits import Limits, command_s_max
from roskva.capture.ownership import FlowName
from roskva.capture.positions import position_from_text
from roskva.capture.publisher.notes import ORDER, PAUSED
from roskva.capture.publisher.settings import SET_TOO, Start
from roskva.capture.publisher.status import flow_status
from roskva.errors import BadRequest, InvalidSetting, RoskvaError, Unavailable, UnknownApplication

if TYPE_CHECKING:
    from roskva.capture.publisher.server import Publisher

REQUEST_BYTES_MAX: Final = 2**16
REQUEST_S_MAX: Final = 10.0  # for the line that asks
CONNECTIONS_MAX: Final = 16


class Control:
    def __init__(self, publisher: Publisher, path: Path) -> None:
        self._publisher = publisher
        self._path = path
        self._server: asyncio.Server | None = None
        self._connected: set[asyncio.Task[Any]] = set()
        self._commands: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            "status": self._status,
            "flows": self._flows,
            "pause": self._pause,
            "resume": self._resume,
            "rewind": self._rewind,
            "ahead": self._ahead,
            "move": self._move,
            "reassign": self._reassign,
            "remove": self._remove,
            "set": self._set,
        }

    async def start(self) -> None:
        self._path.unlink(missing_ok=True)
        before = os.umask(0o177)  # the socket is made with these rights: no moment in which others could connect
        try:
            self._server = await asyncio.start_unix_server(self._serve, self._path, limit=REQUEST_BYTES_MAX)
        finally:
            os.umask(before)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for task in list(self._connected):
                task.cancel()
            await asyncio.gather(*self._connected, return_exceptions=True)
            await self._server.wait_closed()
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connected.add(task)
        try:
            if len(self._connected) > CONNECTIONS_MAX:
                return
            async with asyncio.timeout(REQUEST_S_MAX):
                line = await reader.readline()
            answer = await self.answer(line)
            async with asyncio.timeout(REQUEST_S_MAX):
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (OSError, TimeoutError, ValueError, asyncio.CancelledError):
            pass  # whoever asked is gone, or asked for too much
        finally:
            self._connected.discard(task)
            writer.close()

    async def answer(self, line: bytes) -> dict[str, Any]:
        try:
            try:
                request = json.loads(line)
            except ValueError:
                request = None
            command = self._commands.get(request.get("command", "")) if isinstance(request, dict) else None
            if command is None or not isinstance(request, dict):
                raise BadRequest(f"A line of JSON with one of these commands is expected: {', '.join(self._commands)}.")
            seconds = command_s_max(request["command"], self._publisher.settings.close_s_max)
            try:
                async with asyncio.timeout(seconds):
                    return {"ok": True, "answer": await command(request)}
            except TimeoutError:
                raise Unavailable(f"The command did not end within {seconds:.0f} s, and may still be done: look at status first.") from None
        except RoskvaError as error:
            return {"ok": False, "error": error.code, "message": str(error)}
        except (TypeError, ValueError) as error:
            return {"ok": False, "error": BadRequest.code, "message": f"The command's arguments do not fit: {error}."}

    async def _status(self, request: dict[str, Any]) -> Any:
        return self._publisher.status()

    async def _flows(self, request: dict[str, Any]) -> Any:
        wanted = request.get("application")
        return [
            flow_status(self._publisher, status)
            for status in self._publisher.core.flows()
            if wanted is None or status.flow.application == wanted
        ]

    async def _pause(self, request: dict[str, Any]) -> Any:
        flows = self._named(request)
        for flow in flows:
            await self._publisher.owning.note(f"{PAUSED}{flow}", (str(request.get("why") or "") or "by an operator").encode())
        await self._publisher.owning.look()
        return [str(flow) for flow in flows]

    async def _resume(self, request: dict[str, Any]) -> Any:
        flows = self._named(request)
        for flow in flows:
            await self._publisher.owning.note(f"{PAUSED}{flow}", b"")
        await self._publisher.owning.look()
        return [str(flow) for flow in flows]

    async def _rewind(self, request: dict[str, Any]) -> Any:
        to = _start(request.get("to"))
        flows = self._owned(request)
        position = await self._publisher.owning.rewind(flows, to)
        return {str(flow): str(position) for flow in flows}

    async def _ahead(self, request: dict[str, Any]) -> Any:
        to = _start(request.get("to"))
        flows = self._owned(request)
        position = await self._publisher.owning.find(to)
        datamarkers = {status.flow: status.datamarker for status in self._publisher.core.flows()}
        return {"to": str(position), "flows": [str(flow) for flow in flows if datamarkers.get(flow, position) < position]}

    async def _move(self, request: dict[str, Any]) -> Any:
        application, to = _text(request, "application"), _text(request, "to")
        settings = self._publisher.settings
        if application not in settings.applications:
            raise UnknownApplication(application)
        names = [peer.name for peer in settings.peers] or [settings.name]
        if to and to not in names:
            raise BadRequest(f"There is no publisher {to!r} of this data: {', '.join(names)} are there.")
        order = json.dumps([to, *(name for name in names if name != to)]).encode() if to else b""
        await self._publisher.owning.note(ORDER + application, order)
        return {"application": application, "order": json.loads(order) if to else names}

    async def _reassign(self, request: dict[str, Any]) -> Any:
        now_s = asyncio.get_running_loop().time()
        member = str(request.get("member") or "")
        flows = self._owned(request)
        application = flows[0].application
        if request.get("back"):
            return [str(flow) for flow in flows if self._publisher.placing.leave_to_the_balance(flow, now_s)]
        connected = self._publisher.placing.members(application)
        those = f"Connected of {application!r}: {', '.join(connected) or 'none'}."
        if member and member not in connected:
            raise BadRequest(f"The process {member!r} is not connected to this publisher. {those}")
        if not member and len(connected) < 2:
            raise BadRequest(f"There is no other process that flows could go to. {those}")
        return [str(flow) for flow in flows if self._publisher.placing.reassign(flow, member, now_s)]

    async def _remove(self, request: dict[str, Any]) -> Any:
        application = _text(request, "application")
        if application in self._publisher.settings.applications:
            raise BadRequest(f"The application {application!r} is among the settings: take it out of them first.")
        flows = await self._publisher.owning.forget(application)
        if not flows:
            raise UnknownApplication(application)
        return [str(flow) for flow in flows]

    async def _set(self, request: dict[str, Any]) -> Any:
        known = {field.name: field.type for field in fields(Limits)} | dict.fromkeys(SET_TOO, "int")
        wanted = {name: value for name, value in request.items() if name != "command"}
        for name in wanted.keys() - known.keys():
            raise InvalidSetting(f"There is no limit {name!r}: {', '.join(known)} can be set.")
        settings = self._publisher.settings
        for name, value in wanted.items():
            if not isinstance(value, str if known[name] == "str" else int | float) or isinstance(value, bool):
                raise InvalidSetting(f"The limit {name} cannot be {value!r}.")
        own = {name: wanted.pop(name) for name in SET_TOO if name in wanted}
        self._publisher.configure(replace(settings, limits=replace(settings.limits, **wanted), **own))
        settings = self._publisher.settings
        return {name: getattr(settings if name in SET_TOO else settings.limits, name) for name in known}

    def _named(self, request: dict[str, Any]) -> list[FlowName]:
        """Flows of the settings, whoever owns them."""
        application = _text(request, "application")
        settings = self._publisher.settings
        if application not in settings.applications:
            raise UnknownApplication(application)
        shard = _shard(request)
        if shard is not None and shard >= settings.shards.shards:
            raise BadRequest(f"There is no shard {shard}: there are {settings.shards.shards}.")
        return [FlowName(application, one) for one in (range(settings.shards.shards) if shard is None else [shard])]

    def _owned(self, request: dict[str, Any]) -> list[FlowName]:
        flows = [flow for flow in self._named(request) if flow in self._publisher.owning.held]
        if not flows:
            raise BadRequest("This publisher does not own these flows: ask the one that does.")
        return flows


def _text(request: dict[str, Any], name: str) -> str:
    value = request.get(name)
    if not isinstance(value, str):
        raise BadRequest(f"The command needs {name!r}, as text.")
    return value


def _shard(request: dict[str, Any]) -> int | None:
    value = request.get("shard")
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise BadRequest("A shard is a number from 0 on.")
    return value


def _start(to: object) -> Start:
    if to == "oldest":
        return "oldest"
    if to == "end":
        return "end"
    if isinstance(to, int | float) and not isinstance(to, bool):
        return float(to)
    return position_from_text(str(to))
