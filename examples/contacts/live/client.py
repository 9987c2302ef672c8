"""Shows a list of contacts, as it is now.

python examples/contacts/live/client.py friends
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable

import aiohttp

from roskva import Client, Notification

Show = Callable[[dict[str, str]], None]


async def fetch(http: aiohttp.ClientSession, backend: str, name: str) -> dict[str, str]:
    async with http.get(f"{backend}/lists/{name}", raise_for_status=True) as answer:
        contacts: dict[str, str] = await answer.json()
        return contacts


async def follow(http: aiohttp.ClientSession, backend: str, name: str, show: Show, service: str) -> None:
    async def changed(notification: Notification) -> None:
        show(await fetch(http, backend, name))  # if it raises, it is not acknowledged, and told again

    async with Client(service, application="demo", on_notify=changed) as client:
        await client.register(f"contacts/{name}")  # its answer is the first notification
        await asyncio.Event().wait()


def on_the_terminal(contacts: dict[str, str]) -> None:
    print(*(f"{name}: {phone}" for name, phone in contacts.items()), sep=", ", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("list")
    parser.add_argument("--backend", default="http://127.0.0.1:8001")
    parser.add_argument("--service", default="http://127.0.0.1:8470", help="where Roskva is")
    given = parser.parse_args()
    async with aiohttp.ClientSession() as http:
        await follow(http, given.backend, given.list, on_the_terminal, given.service)


if __name__ == "__main__":
    asyncio.run(main())
