"""Drives the Python client through `roskva conformance --serve PORT`: what a driver of any other client must do, too.

Run: python examples/conformance/driver.py http://127.0.0.1:PORT
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from roskva import Client, Notification
from roskva.errors import ClientStopped, RoskvaError


class Driver:
    def __init__(self, folder: Path, make: Callable[..., Client] = Client) -> None:
        self._make = make
        self._state = folder / "state"
        self._client: Client | None = None
        self._idle = asyncio.Event()  # not busy
        self._idle.set()
        self.told: list[str] = []

    async def _notified(self, notification: Notification) -> None:
        version = "unknown" if notification.unknown else f"version {notification.version}"
        self.told.append(f"notify: {notification.object}, {version}")
        await self._idle.wait()  # the notification is acknowledged when this returns

    def _failed(self, name: str, transient: bool, code: str, message: str) -> None:
        self.told.append(f"failure: {name}, {code}, {'transient' if transient else 'permanent'}")

    async def obey(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "scenario":  # begins with nothing kept
                self._state.unlink(missing_ok=True)
                self._idle.set()
            case "start":
                self._client = self._make(
                    order["url"],
                    application=order["application"],
                    device=order["device"],
                    state=self._state,
                    channel="websocket",
                    on_notify=self._notified,
                    on_failure=self._failed,
                )
                await self._client.start()
            case "end":
                client, self._client = self._client, None
                self._idle.set()
                if client is not None:
                    await client.close()
            case "sign-out":
                client, self._client = self._client, None
                assert client is not None
                await client.forget(timeout=3)
            case "register":
                for name in order["names"]:
                    await self._running().register(name, int(order["version"]) if "version" in order else None)
            case "unregister":
                await self._running().unregister(order["names"][0])
            case "busy":
                self._idle.clear()
            case "done":
                self._idle.set()
            case "in-sync":
                self.told.append(f"in_sync: {'yes' if self._running().in_sync else 'no'}")

    def _running(self) -> Client:
        if self._client is None:
            raise ClientStopped("The client was not started.")
        return self._client


async def drive(url: str, driver_of: Callable[[Path], Driver] = Driver, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Until the server has finished; answers how many passed and failed."""
    with tempfile.TemporaryDirectory() as folder:
        driver = driver_of(Path(folder))
        async with aiohttp.ClientSession() as http:
            while True:
                told, driver.told = driver.told, []
                async with http.post(f"{url}/conformance/next", json={"told": told}) as answer:
                    order: dict[str, Any] = await answer.json()
                if order["do"] == "finished":
                    return order
                if order["do"] == "scenario":
                    say(order["name"])
                try:
                    await driver.obey(order)
                except (RoskvaError, TimeoutError) as error:  # such as a client that was superseded: the server judges
                    say(f"  {order['do']}: {error}")


if __name__ == "__main__":
    print(asyncio.run(drive(sys.argv[1])))
