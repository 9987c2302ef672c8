"""Real databases with the outbox's tables, and a service that records what is published."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from roskva.errors import RoskvaError
from roskva.outbox.rows import DDL
from roskva.publisher import BlockingPublisher
from tests.capture.stores.servers_mariadb import MariadbServer
from tests.capture.stores.servers_postgres import running_postgres

APPLICATION = "shop"


class Recorder:
    """POST /v1/publish over real HTTP. `told` has (object, version, source) in the order of their arrival."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, str | None]] = []
        self.answers: list[tuple[int, Any]] = []  # of the next requests
        self.fetch: Callable[[str], int] = lambda name: 0  # what a client does that is told of an object
        self.seen: dict[str, tuple[int, int]] = {}  # of each object the highest version, and what was fetched when that was told
        self._lock = threading.Lock()
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # headers and body are two writes

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = recorder.answer(body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Who called was killed, perhaps."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, body: Any) -> tuple[int, Any]:
        if self.answers:
            return self.answers.pop(0)
        for one in body["updates"]:
            name, version = one["object"], int(one["version"])
            self.told.append((name, version, one.get("source")))
            fetched = self.fetch(name)
            with self._lock:
                self.seen[name] = max(self.seen.get(name, (-1, 0)), (version, fetched))
        return 200, {"results": [{"ok": True} for _ in body["updates"]]}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Told:
    """A publisher without a network: keeps what it is given."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, str | None]] = []

    def publish_many(self, changes: Any) -> list[RoskvaError | None]:
        given = list(changes)
        self.told += given
        return [None] * len(given)


@pytest.fixture
def service() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    recorder.close()


@pytest.fixture
def publisher(service: Recorder) -> Iterator[BlockingPublisher]:
    with BlockingPublisher(service.url, application=APPLICATION, retry_for_s=0.0) as publisher:
        yield publisher


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Callable[[], str]]]:
    """Where each kind of server is; it is started when somebody asks, and stopped at the end."""
    with ExitStack() as stack:
        started: dict[str, str] = {}

        def postgres() -> str:
            if "postgres" not in started:
                server = stack.enter_context(running_postgres())
                started["postgres"] = f"postgresql+psycopg2://postgres@127.0.0.1:{server.port}/postgres"
            return started["postgres"]

        def mariadb() -> str:
            if "mariadb" not in started:
                server = MariadbServer(tmp_path_factory.mktemp("mariadb"))
                server.start()
                stack.callback(server.kill)
                server.rows("CREATE DATABASE outbox")
                started["mariadb"] = f"mysql+pymysql://root@127.0.0.1:{server.port}/outbox"
            return started["mariadb"]

        yield {"postgres": postgres, "mariadb": mariadb}


def make_engine(kind: str, servers: dict[str, Callable[[], str]], folder: Path) -> sa.Engine:
    """With fresh tables, made by the documented statements."""
    url = f"sqlite:///{folder}/application.db" if kind == "sqlite" else servers[kind]()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for table in ("roskva_outbox", "roskva_outbox_relay", "documents"):
            connection.execute(sa.text(f"DROP TABLE IF EXISTS {table}"))
        for statement in DDL[{"mariadb": "mysql", "postgres": "postgresql"}.get(kind, kind)]:
            connection.execute(sa.text(statement))
        connection.execute(sa.text("CREATE TABLE documents (id integer PRIMARY KEY, title varchar(64))"))
    return engine


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def engine(request: pytest.FixtureRequest, servers: dict[str, Callable[[], str]], tmp_path: Path) -> Iterator[sa.Engine]:
    engine = make_engine(request.param, servers, tmp_path)
    yield engine
    engine.dispose()


@pytest.fixture
def sqlite(servers: dict[str, Callable[[], str]], tmp_path: Path) -> Iterator[sa.Engine]:
    engine = make_engine("sqlite", servers, tmp_path)
    yield engine
    engine.dispose()


@pytest.fixture
def postgres(servers: dict[str, Callable[[], str]], tmp_path: Path) -> Iterator[sa.Engine]:
    engine = make_engine("postgres", servers, tmp_path)
    yield engine
    engine.dispose()
