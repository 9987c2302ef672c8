"""Lists of contacts in SQLite, read and changed over HTTP. Every change is published.

python examples/contacts/live/backend.py --database contacts.db --port 8001
"""

from __future__ import annotations

import argparse
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator

from aiohttp import web

from roskva import Publisher


class Contacts:
    """The database."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("CREATE TABLE IF NOT EXISTS contacts (list TEXT, name TEXT, phone TEXT, PRIMARY KEY (list, name))")
        self._connection.execute("CREATE TABLE IF NOT EXISTS versions (list TEXT PRIMARY KEY, version INTEGER)")

    def read(self, name: str) -> dict[str, str]:
        return dict(self._connection.execute("SELECT name, phone FROM contacts WHERE list = ? ORDER BY name", (name,)))

    def change(self, name: str, contact: str, phone: str | None) -> int:
        """Add, change, or delete (no phone) a contact. Answers the list's new version."""
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            if phone is None:
                self._connection.execute("DELETE FROM contacts WHERE list = ? AND name = ?", (name, contact))
            else:
                self._connection.execute("INSERT OR REPLACE INTO contacts VALUES (?, ?, ?)", (name, contact, phone))
            raised = "INSERT INTO versions VALUES (?, 1) ON CONFLICT DO UPDATE SET version = version + 1 RETURNING version"
            return int(self._connection.execute(raised, (name,)).fetchone()[0])

    def versions(self) -> list[tuple[str, int]]:
        return [(f"contacts/{name}", version) for name, version in self._connection.execute("SELECT list, version FROM versions")]


class Backend:
    def __init__(self, contacts: Contacts, service: str) -> None:
        self._contacts = contacts
        self._service = service
        self._requests: Counter[str] = Counter()

    def application(self) -> web.Application:
        application = web.Application()
        application.cleanup_ctx.append(self.publishing)
        application.router.add_get("/lists/{list}", self.read)
        application.router.add_put("/lists/{list}/{contact}", self.change)
        application.router.add_delete("/lists/{list}/{contact}", self.change)
        application.router.add_get("/requests", self.requests)
        return application

    async def publishing(self, application: web.Application) -> AsyncIterator[None]:
        async with Publisher(self._service, application="demo") as self._publisher:
            await self._publisher.publish_many(self._contacts.versions())  # what a crash kept from being published
            yield

    async def read(self, request: web.Request) -> web.Response:
        self._requests["reads"] += 1
        return web.json_response(self._contacts.read(request.match_info["list"]))

    async def change(self, request: web.Request) -> web.Response:
        self._requests["changes"] += 1
        phone = await request.text() if request.method == "PUT" else None
        version = self._contacts.change(request.match_info["list"], request.match_info["contact"], phone)
        await self._publisher.publish(f"contacts/{request.match_info['list']}", version)
        return web.Response(status=204)

    async def requests(self, request: web.Request) -> web.Response:
        """How many there were so far."""
        return web.json_response(self._requests)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True)
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--service", default="http://127.0.0.1:8470", help="where Roskva is")
    given = parser.parse_args()
    web.run_app(Backend(Contacts(given.database), given.service).application(), host="127.0.0.1", port=given.port)


if __name__ == "__main__":
    main()
