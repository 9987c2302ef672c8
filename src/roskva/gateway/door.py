"""A gateway's own door: a Unix socket in the data directory at which it answers, and no other that shares its port.

Through it `roskva up` asks each gateway whether it lives, and the others ask for what only it knows: its figures, whether its clients are
online, the polled connections that it holds (gateway/peers.py). The folder is its owner's alone, as the file with the keys is: whoever can
open the socket could as well read those, so that no key is asked for. Plain HTTP; nothing of it is reached by the public port.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from roskva.durable import private_directory
from roskva.errors import AddressInUse, MalformedMessage, RoskvaError
from roskva.gateway.sharing import RUN, folder_path
from roskva.model import ClientId

if TYPE_CHECKING:
    from roskva.gateway.http import Routes

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0
MEMBER_HEADER: Final = "Roskva-Member"  # of each answer: after a kill the next start has the same door and another id
_BACKLOG: Final = 4_096  # as the public port's: many polls at once may have to be passed on
_STOP_S: Final = 1.0
_SUFFIX: Final = ".sock"
_AN_ID: Final = re.compile("[0-9a-f]{16}")


def door_name(name: str) -> str:
    return name + _SUFFIX


class Door:
    """The socket DIR/run/NAME.sock."""

    def __init__(self, data: Path, name: str) -> None:
        self._folder = data / RUN
        self._name = name
        self._path = self._folder / door_name(name)
        self._lock = -1
        self._socket: socket.socket | None = None
        self._runner: web.AppRunner | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def connections(self) -> int:
        """How many have come through it, and are open."""
        return 0 if self._runner is None or self._runner.server is None else len(self._runner.server.connections)

    async def open(self, application: web.Application) -> None:
        assert self._socket is not None
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=_STOP_S)
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket, backlog=_BACKLOG).start()
        self._watching = asyncio.get_running_loop().create_task(self._watch(self._runner))

    async def _watch(self, runner: web.AppRunner) -> None:
        """Whatever is deleted from the data directory is made anew. Who is connected already stays so."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                if not await asyncio.to_thread(self._path.exists):
                    await asyncio.to_thread(self.bind)
                    assert self._socket is not None
                    await web.SockSite(runner, self._socket, backlog=_BACKLOG).start()
                    log.warning("the door %s was deleted, and is there again", self._path)
            except (OSError, RoskvaError) as error:
                log.warning("the door %s was deleted: %s", self._path, error)

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._socket is not None:
            self._socket.close()
        if self._lock >= 0:
            with suppress(OSError):  # perhaps the folder is gone
                self._path.unlink()
                (self._folder / f"{self._name}.lock").unlink()
            os.close(self._lock)
            self._lock = -1

    def bind(self) -> None:
        """Take the name. Nobody is answered before `open`. Blocks for a moment."""
        private_directory(self._folder)
        lock = os.open(self._folder / f"{self._name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if self._lock >= 0 and os.path.sameopenfile(lock, self._lock):
            os.close(lock)  # it is ours already
        else:
            self._hold(lock)
        self._sweep()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with folder_path(self._folder) as folder:
            self._socket.bind(f"{folder}/{door_name(self._name)}")
            os.chmod(f"{folder}/{door_name(self._name)}", 0o600)  # the folder may have been there before, open to others

    def _hold(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise AddressInUse(f"A gateway that is called {self._name} runs on this data directory already.") from None
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = lock

    def _sweep(self) -> None:
        """Of this name, and of gateways that were killed and will not come back under theirs, which was an id.

        Others will: who looked at their locks now might be in the way of one that starts.
        """
        self._path.unlink(missing_ok=True)
        for path in self._folder.glob(f"*{_SUFFIX}"):
            if _AN_ID.fullmatch(path.stem) is None:
                continue
            lock = path.with_suffix(".lock")
            with suppress(OSError):
                held = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink(missing_ok=True)
                    lock.unlink(missing_ok=True)
                finally:
                    os.close(held)


def door_application(routes: Routes) -> web.Application:
    """What is answered at the door: by this gateway, of itself."""
    from roskva.gateway.http import json_response, named_errors

    async def pipeline(request: web.Request) -> web.StreamResponse:
        return json_response({"pipeline": await routes.inspection.pipeline()})

    async def own(request: web.Request) -> web.StreamResponse:
        return json_response(routes.inspection.own())

    async def metrics(request: web.Request) -> web.StreamResponse:
        return web.Response(body=routes.own_metrics())

    async def online(request: web.Request) -> web.StreamResponse:
        """Of these clients, those that this gateway owns: whether they are online."""
        try:
            clients = msgspec.json.decode(await request.read(), type=list[str])
        except msgspec.DecodeError as error:
            raise MalformedMessage(f"The request is not a list of clients: {error}.") from None
        return json_response({client: known for client in clients if (known := routes.users.online_here(ClientId(client))) is not None})

    async def signed(request: web.Request, response: web.StreamResponse) -> None:
        response.headers[MEMBER_HEADER] = routes.inspection.membership.member.id

    application = web.Application(middlewares=[named_errors], client_max_size=routes.settings.publish_bytes_max)
    application.on_response_prepare.append(signed)
    application.add_routes(
        [
            web.get("/healthz", routes.healthz),
            web.get("/pipeline", pipeline),
            web.get("/own", own),
            web.get("/metrics", metrics),
            web.post("/online", online),
            web.get("/v1/inspect/clients/{id}", routes.inspect_client_here),
            web.get("/v1/inspect/latency", routes.inspect_latency_here),
            web.get("/v1/inspect/objects/{application}/{name:.+}", routes.inspect_object_here),
            *routes.polling(None).routes_of_one(),
        ]
    )
    return application
