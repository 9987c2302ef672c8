"""Lists of contacts in SQLite, read and changed over HTTP.

python examples/contacts/polling/backend.py --database contacts.db --port 8001
"""

from __future__ import annotations

import argparse
import sqlite3
from collections import Counter

from aiohttp import web


class Contacts:
    """The database."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("CREATE TABLE IF NOT EXISTS contacts (list TEXT, name TEXT, phone TEXT, PRIMARY KEY (list, name))")

    def read(self, name: str) -> dict[str, str]:
        return dict(self._connection.execute("SELECT name, phone FROM contacts WHERE list = ? ORDER BY name", (name,)))

    def change(self, name: str, contact: str, phone: str | None) -> None:
        """Add, change, or delete (no phone) a contact."""
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            if phone is None:
                self._connection.execute("DELETE FROM contacts WHERE list = ? AND name = ?", (name, contact))
            else:
                self._connection.execute("INSERT OR REPLACE INTO contacts VALUES (?, ?, ?)", (name, contact, phone))


class Backend:
    def __init__(self, contacts: Contacts) -> None:
        self._contacts = contacts
        self._requests: Counter[str] = Counter()

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/lists/{list}", self.read)
        application.router.add_put("/lists/{list}/{contact}", self.change)
        application.router.add_delete("/lists/{list}/{contact}", self.change)
        application.router.add_get("/requests", self.requests)
        return application

    async def read(self, request: web.Request) -> web.Response:
        self._requests["reads"] += 1
        return web.json_response(self._contacts.read(request.match_info["list"]))

    async def change(self, request: web.Request) -> web.Response:
        self._requests["changes"] += 1
        phone = await request.text() if request.method == "PUT" else None
        self._contacts.change(request.match_info["list"], request.match_info["contact"], phone)
        return web.Response(status=204)

    async def requests(self, request: web.Request) -> web.Response:
        """How many there were so far."""
        return web.json_response(self._requests)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True)
    parser.add_argument("--port", type=int, default=8001)
    given = parser.parse_args()
    web.run_app(Backend(Contacts(given.database)).application(), host="127.0.0.1", port=given.port)


if __name__ == "__main__":
    main()
