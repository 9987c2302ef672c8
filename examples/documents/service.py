"""A small web service whose instances share one database, and still answer from memory: stdlib WSGI and a BlockingLiveCache.

    python examples/documents/service.py --database documents.db --port 8001 &
    python examples/documents/service.py --database documents.db --port 8002 &
    curl -X PUT --data 'first draft' http://127.0.0.1:8001/documents/plan
    curl -i http://127.0.0.1:8002/documents/plan        # X-Cache: fresh | stale | unknown, X-Fetches: how often it asked the database

Each document has a version, which every write raises in its own transaction. After the commit the new version is published, and all
instances that hold the document fetch it again. Whoever crashes between commit and publish must publish again: here, at the next start.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from socketserver import ThreadingMixIn
from threading import Lock
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from roskva import BlockingLiveCache, BlockingPublisher
from roskva.errors import FetchFailed

APPLICATION = "demo"
DOCUMENT_BYTES_MAX = 1_000_000


class Documents:
    """The database. A connection for each call: simple, and safe in threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fetches = 0
        self._counting = Lock()
        with closing(self._connect()) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS documents (name TEXT PRIMARY KEY, text TEXT NOT NULL, version INTEGER NOT NULL)")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=10.0, isolation_level=None)

    def fetch(self, object_name: str) -> tuple[str | None, int]:
        """What the cache calls: the value and its version. A document that is not there has version 0, and may be cached, too."""
        with self._counting:
            self.fetches += 1
        with closing(self._connect()) as connection:
            row = connection.execute(
                "SELECT text, version FROM documents WHERE name = ?", (object_name.removeprefix("document:"),)
            ).fetchone()
        return (None, 0) if row is None else (row[0], row[1])

    def write(self, name: str, text: str) -> int:
        with closing(self._connect()) as connection:
            row = connection.execute(
                "INSERT INTO documents VALUES (?, ?, 1) ON CONFLICT (name) DO UPDATE SET text = excluded.text, version = version + 1"
                " RETURNING version",
                (name, text),
            ).fetchone()
        return int(row[0])

    def versions(self) -> list[tuple[str, int]]:
        with closing(self._connect()) as connection:
            return [(f"document:{name}", version) for name, version in connection.execute("SELECT name, version FROM documents")]


class Application:
    def __init__(self, documents: Documents, cache: BlockingLiveCache, publisher: BlockingPublisher) -> None:
        self.documents, self.cache, self.publisher = documents, cache, publisher

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        name = environ["PATH_INFO"].removeprefix("/documents/")
        if not environ["PATH_INFO"].startswith("/documents/") or not 1 <= len(name.encode()) <= 100:
            return self._answer(start_response, "404 Not Found", "There is nothing here but /documents/NAME.\n")
        if environ["REQUEST_METHOD"] == "PUT":
            length = int(environ.get("CONTENT_LENGTH") or 0)
            if length > DOCUMENT_BYTES_MAX:
                return self._answer(start_response, "413 Content Too Large", "That is too long.\n")
            version = self.documents.write(name, environ["wsgi.input"].read(length).decode(errors="replace"))
            self.publisher.publish(f"document:{name}", version)
            self.cache.invalidate(f"document:{name}")  # whoever asks this instance next sees the write; the others are told
            return self._answer(start_response, "200 OK", f"version {version}\n")
        try:
            text = self.cache.get(f"document:{name}")
        except FetchFailed as error:
            return self._answer(start_response, "503 Service Unavailable", f"{error}\n")
        state = self.cache.state(f"document:{name}").state
        headers = [("X-Cache", str(state)), ("X-Fetches", str(self.documents.fetches))]
        if text is None:
            return self._answer(start_response, "404 Not Found", "There is no such document.\n", headers)
        return self._answer(start_response, "200 OK", text, headers)

    @staticmethod
    def _answer(start_response: Callable[..., Any], status: str, text: str, headers: Iterable[tuple[str, str]] = ()) -> Iterable[bytes]:
        body = text.encode()
        start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), *headers])
        return [body]


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description="Documents from a shared database, cached and fresh.")
    parser.add_argument("--database", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--url", default=os.environ.get("ROSKVA_URL", "http://127.0.0.1:8470"), help="where Roskva is")
    given = parser.parse_args()
    documents = Documents(given.database)
    with (
        BlockingPublisher(given.url, application=APPLICATION) as publisher,
        BlockingLiveCache(given.url, application=APPLICATION, fetch=documents.fetch, versioned=True) as cache,
        make_server("127.0.0.1", given.port, Application(documents, cache, publisher), Server, Quiet) as server,
    ):
        publisher.publish_many(documents.versions())  # what a crash kept from being published; of the others nobody hears twice
        for number in (signal.SIGINT, signal.SIGTERM):  # said, since a script starts what it puts in the background with SIGINT ignored
            signal.signal(number, signal.default_int_handler)
        with suppress(KeyboardInterrupt):
            print(f"http://127.0.0.1:{server.server_port}", flush=True)
            server.serve_forever()


if __name__ == "__main__":
    main()
