"""Shows a list of contacts, as it is now.

python examples/contacts/polling/client.py friends
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable

import aiohttp

Show = Callable[[dict[str, str]], None]


async def fetch(http: aiohttp.ClientSession, backend: str, name: str) -> dict[str, str]:
    async with http.get(f"{backend}/lists/{name}", raise_for_status=True) as answer:
        contacts: dict[str, str] = await answer.json()
        return contacts


async def follow(http: aiohttp.ClientSession, backend: str, name: str, show: Show, every_s: float) -> None:
    while True:
        try:
            show(await fetch(http, backend, name))
        except aiohttp.ClientError as error:
            print(f"{backend} does not answer: {error}", flush=True)
        await asyncio.sleep(every_s)


def on_the_terminal(contacts: dict[str, str]) -> None:
    print(*(f"{name}: {phone}" for name, phone in contacts.items()), sep=", ", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("list")
    parser.add_argument("--backend", default="http://127.0.0.1:8001")
    parser.add_argument("--every", type=float, default=10.0, metavar="SECONDS")
    given = parser.parse_args()
    async with aiohttp.ClientSession() as http:
        await follow(http, given.backend, given.list, on_the_terminal, given.every)


if __name__ == "__main__":
    asyncio.run(main())
