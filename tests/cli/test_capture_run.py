"""`roskva capture` as a real process over a log in files: starts, serves, restarts what dies, takes commands, stops, leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import pytest

from roskva.capture.interface import Malformed, Retained
from roskva.capture.positions import BEGINNING
from roskva.capture.publisher import Publisher
from roskva.capture.running.places import key_of
from roskva.capture.running.publisher import Watch
from roskva.capture.settings import load
from roskva.capture.stores.file_lines import Entry
from roskva.capture.stores.file_log import FileLog
from roskva.capture.subscriber import Callbacks, Subscriber
from roskva.capture.updates import Operation, Update
from roskva.cli import main, processes
from tests.capture.stores.servers_binlog import BinlogServer
from tests.capture.stores.servers_mariadb import MariadbServer
from tests.capture.stores.servers_mysql import MysqlServer
from tests.capture.stores.servers_postgres import PostgresServer, directory_for_postgres

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 30.0
INSERT = "INSERT INTO documents (id, title) VALUES ({}, '{}')"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def until(true: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline_s, what()
        time.sleep(0.02)


class Answer(NamedTuple):
    status: int
    out: str
    err: str


class Running:
    """One `roskva capture` under test, with what it printed."""

    started: ClassVar[list[Running]] = []

    def __init__(self, folder: Path, more: str = "", file: Path | None = None) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.log.mkdir(exist_ok=True)
        self.file = file or folder / "capture.toml"
        self.address = f"127.0.0.1:{free_port()}"
        self.metrics = f"127.0.0.1:{free_port()}"
        if file is None:
            self.file.write_text(f"""
[dataset]
name = "shop"
[datastore]
kind = "files"
path = "{self.log}"
[publisher]
listen = "{self.address}"
data = "{folder}/data"
datamarker_period_s = 0.2
[applications.search]
start = "oldest"
{more}
""")
        self.output = folder / "out"
        self.started.append(self)
        self.start()

    def start(self) -> None:
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "roskva", "capture", "--config", str(self.file), "--metrics", self.metrics],
                stdout=out, stderr=out, env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            )  # fmt: skip

    def text(self) -> str:
        logs = [path.read_text() for path in sorted((self.folder / "data" / "log").glob("*.log"))]
        return "\n".join([self.output.read_text(), *logs])

    def ready(self, times: int = 1) -> None:
        until(lambda: self.text().count("Ctrl-C stops it.") == times or self.process.poll() is not None, self.text)
        assert self.process.poll() is None, self.text()

    def command(self, *arguments: str) -> Answer:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(["capture", *arguments, "--config", str(self.file)])
        return Answer(status, out.getvalue(), err.getvalue())

    def status(self) -> dict[str, Any]:
        done = self.command("status", "--json")
        assert done.out, done.err
        found: dict[str, Any] = json.loads(done.out)
        return found

    def children(self) -> set[processes.Process]:
        run = (self.folder / "data" / "capture.lock").read_text().split()[1]
        return processes.of_run(run)

    def stop(self) -> int:
        """As a supervisor does; leaves nothing running, whatever happens."""
        left = self.children() if self.process.poll() is None else set()
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(WAIT_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            remaining = [process for process in left if processes.alive(process)]
            for process in remaining:
                processes.kill(process)
            assert not remaining, "roskva capture left processes behind"


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="roskva-capture-"))  # a path short enough for a socket
    yield made
    for running in Running.started:
        if running.process.poll() is None:  # a test that failed
            running.process.kill()  # its children notice, and end
            running.process.wait()
    Running.started.clear()
    shutil.rmtree(made)


class Kept(Callbacks):
    def __init__(self) -> None:
        self.titles: list[Any] = []

    def on_update(self, update: Update) -> None:
        self.titles.append(update.change.columns["title"])


@contextlib.contextmanager
def told(running: Running, wanted: list[str]) -> Iterator[None]:
    """A subscriber hears these titles, in this order, repetitions aside, while the block runs or after it."""
    yield

    async def listen() -> list[Any]:
        kept = Kept()
        settings = load(running.file)
        async with (
            Subscriber("search", key_of(settings, "search"), [running.address], kept, "tests", reconnect_s_max=0.2),
            asyncio.timeout(WAIT_S),
        ):
            while list(dict.fromkeys(kept.titles))[-len(wanted) :] != wanted:
                await asyncio.sleep(0.02)
        return kept.titles

    asyncio.run(listen())


def written(running: Running, *titles: str) -> None:
    with FileLog(running.log) as log:
        for number, title in enumerate(titles):
            log.append([Entry(Operation.INSERT, "documents", {"id": number}, {"title": title})])


def test_it_serves_restarts_what_dies_takes_commands_and_stops(folder: Path) -> None:
    running = Running(folder)
    try:
        running.ready()
        with told(running, ["a", "b"]):
            written(running, "a", "b")
        assert (folder / "data" / "key").stat().st_mode & 0o777 == 0o600

        found = running.status()
        assert found["publisher"] == "publisher"
        assert found["log"]["disk_free_bytes"] > 0
        assert [flow["application"] for flow in found["flows"]] == ["search"]
        with urllib.request.urlopen(f"http://{running.metrics}/metrics", timeout=5) as answer:
            metrics = answer.read().decode()
        assert 'roskva_capture_updates_sent_total{application="search",shard="0"} 2' in metrics

        # Killed: it is started again, and goes on.
        before = running.children()
        os.kill(next(iter(before)).pid, signal.SIGKILL)
        until(lambda: "publisher ended with status -9" in running.text(), running.text)
        with told(running, ["c"]):
            written(running, "c")
        assert running.children().isdisjoint(before)

        assert running.command("set", "caravans_max=2", "caravan_rate_max=1 MiB").out.splitlines()[1:3] == [
            "caravans_max = 2",
            "caravan_rate_max = 1048576.0",
        ]
        assert "There is no limit 'nonsense'" in running.command("set", "nonsense=2").err
        assert running.command("pause", "search", "--why", "rest").out == "Paused: search/0.\n"
        assert "paused (rest)" in running.command("status").out
        assert running.command("resume", "search").out == "Resumed: search/0.\n"
        with told(running, ["a", "b", "c"]):
            assert running.command("rewind", "search", "oldest").status == 0
        assert "is among the settings" in running.command("remove", "search", "--yes").err

        second = running.command()
        assert second.status == 1
        assert "runs on it already" in second.err
        assert running.command("check").status == 0
    finally:
        assert running.stop() == 0, running.text()
    assert "stopped in" in running.output.read_text()
    assert running.command("status").status == 1
    assert not list((folder / "data").glob("*.sock"))


def test_what_happens_while_it_is_down_is_told_when_it_is_back(folder: Path) -> None:
    running = Running(folder)
    running.ready()
    assert running.stop() == 0, running.text()
    written(running, "while it was down")
    running.start()
    try:
        with told(running, ["while it was down"]):
            running.ready(2)
    finally:
        assert running.stop() == 0, running.text()


def test_a_database_that_is_not_ready_is_explained_and_one_that_is_down_is_waited_for(folder: Path) -> None:
    with directory_for_postgres() as directory:
        server = PostgresServer(directory, wal_level="replica").create()
        slots = "SELECT slot_name FROM pg_replication_slots WHERE NOT temporary"
        settings = folder / "capture.toml"
        settings.write_text(f"""
[dataset]
name = "shop"
[datastore]
kind = "postgres"
dsn = "{server.dsn("postgres")}"
[publisher]
listen = "127.0.0.1:{free_port()}"
data = "{folder}/data"
[applications.search]
""")
        try:
            server.start()
            done = Running(folder, file=settings)
            assert done.process.wait(WAIT_S) == 1, done.text()
            assert "publisher ended with status 2; it is not started again" in done.output.read_text()
            assert "ALTER SYSTEM SET wal_level" in done.output.read_text()
            checked = done.command("check")
            assert checked.status == 1
            assert "FAIL  wal_level is replica" in checked.out
            assert "do: ALTER SYSTEM SET wal_level = 'logical'" in checked.out

            server.stop()
            server.settings["wal_level"] = "logical"
            running = Running(folder, file=settings)
            try:
                until(lambda: "cannot be prepared yet" in running.text(), running.text)
                assert f"Process {running.process.pid} runs `roskva capture` there" in running.command("status").err
                server.start()
                running.ready()
                found = running.status()
                assert found["problems"] == []
                assert found["log"]["share"] is not None, "of the disk, since nothing else is the limit"
                # Somebody drops the slot, and the readers' copies with it: a new one is made, and reading goes on.
                ended = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active"
                server.execute("postgres", "SELECT pg_drop_replication_slot('roskva')", ended)
                until(lambda: server.execute("postgres", slots) == [("roskva",)], running.text)
                until(lambda: running.status()["problems"] == [], running.text)
                assert running.text().count("The log begins after") < 20
            finally:
                assert running.stop() == 0, running.text()
            assert server.execute("postgres", slots) == [("roskva",)], "what was prepared stays"
        finally:
            server.stop()


@pytest.mark.parametrize(
    ("kind", "made", "rights"),
    [
        ("mariadb", MariadbServer, "REPLICATION SLAVE, BINLOG MONITOR, SLAVE MONITOR, SELECT"),
        ("mysql", MysqlServer, "REPLICATION SLAVE, REPLICATION CLIENT, SELECT"),
    ],
    ids=["mariadb", "mysql"],
)
def test_a_binary_log_is_checked_read_and_waited_for(folder: Path, kind: str, made: type[BinlogServer], rights: str) -> None:
    database = folder / kind
    database.mkdir()
    server = made(database)
    address = f"127.0.0.1:{free_port()}"
    try:
        server.start()
        server.run(
            "CREATE USER roskva@'%' IDENTIFIED BY 'secret'", "CREATE DATABASE shop",
            f"GRANT {rights} ON *.* TO roskva@'%'",
            "CREATE TABLE shop.folders (id INT PRIMARY KEY)",
            "CREATE TABLE shop.documents (id INT PRIMARY KEY, title TEXT, folder INT, FOREIGN KEY (folder) REFERENCES folders (id))",
            "CREATE TABLE shop.others (id INT PRIMARY KEY, folder INT, FOREIGN KEY (folder) REFERENCES folders (id) ON DELETE CASCADE)",
        )  # fmt: skip
        settings = folder / "capture.toml"
        settings.write_text(f"""
[dataset]
name = "shop"
[datastore]
kind = "{kind}"
port = {server.port}
user = "roskva"
password = "secret"
[publisher]
listen = "{address}"
data = "{folder}/data"
datamarker_period_s = 0.2
[applications.search]
start = "oldest"
filter = '[table = "documents" AND operation = "insert"]'
""")
        running = Running(folder, file=settings)
        running.address = address
        try:
            running.ready()
            checked = running.command("check")
            assert checked.status == 0, checked.out
            with told(running, ["a", "b"]):
                server.run(INSERT.format(1, "a"), INSERT.format(2, "b"), database="shop")
            found = running.status()
            assert (found["problems"], [flow["application"] for flow in found["flows"]]) == ([], ["search"])

            # A rule by which rows of this table, and not only of another one, change below the log.
            server.run("ALTER TABLE shop.documents ADD FOREIGN KEY (folder) REFERENCES folders (id) ON DELETE SET NULL")
            checked = running.command("check")
            assert checked.status == 1
            assert "FAIL  every row of shop.documents that changes is in the log" in checked.out
            assert "ON DELETE SET NULL" in checked.out
            assert "shop.others" not in checked.out, "nobody is told of it"

            server.kill()
            until(lambda: bool(running.status()["problems"]), running.text)
            server.start()
            until(lambda: running.status()["problems"] == [], running.text)
            with told(running, ["c"]):
                server.run(INSERT.format(3, "c"), database="shop")
        finally:
            assert running.stop() == 0, running.text()
    finally:
        server.kill()


def test_what_an_application_asks_of_time_is_kept_to(folder: Path) -> None:
    """`max_age_s` and `real_time_only`, from the settings file to what comes: each in its own place."""
    old = Entry(Operation.INSERT, "documents", {"id": 1}, {"title": "old"}, committed_us=1_000_000)
    recent, new = (Entry(Operation.INSERT, "documents", {"id": 2}, {"title": title}) for title in ("recent", "new"))
    begins = 'start = "oldest"\n'
    running = Running(folder, f"[applications.young]\n{begins}max_age_s = 3600\n[applications.live]\n{begins}real_time_only = true")
    try:
        running.ready()
        with FileLog(running.log) as log:
            log.append([old, recent])

        async def listen() -> None:
            settings = load(running.file)
            kept = {name: Kept() for name in ("search", "young", "live")}
            async with contextlib.AsyncExitStack() as stack:
                await stack.enter_async_context(asyncio.timeout(WAIT_S))
                for name, one in kept.items():
                    key = key_of(settings, name)
                    await stack.enter_async_context(Subscriber(name, key, [running.address], one, "tests", reconnect_s_max=0.2))
                riding = {"application": "live", "state": "riding"}.items()
                while not any(riding <= flow.items() for flow in (await asyncio.to_thread(running.status))["flows"]):
                    await asyncio.sleep(0.02)
                with FileLog(running.log) as log:
                    log.append([old, new])
                while any("new" not in one.titles for one in kept.values()):
                    await asyncio.sleep(0.02)
            assert {name: one.titles for name, one in kept.items()} == {
                "search": ["old", "recent", "old", "new"],
                "young": ["recent", "new"],
                "live": ["old", "new"],
            }

        asyncio.run(listen())
        assert {flow["application"]: flow["too_old"] for flow in running.status()["flows"]} == {"search": 0, "young": 2, "live": 0}
    finally:
        assert running.stop() == 0, running.text()


class Looked:
    """What the watch needs of a publisher."""

    def __init__(self, behind: int | None) -> None:
        self.retained = Retained(BEGINNING, BEGINNING, behind, 100)
        self.lines = Malformed(0, "")

    def malformed(self) -> Malformed:
        return self.lines


def test_lines_that_cannot_be_read_are_told_once_and_when_there_are_more(caplog: pytest.LogCaptureFixture) -> None:
    looked = Looked(None)
    watch = Watch(cast(Publisher, looked), None)
    for now_s, count in [(0, 0), (5, 2), (10, 2), (15, 3)]:
        looked.lines = Malformed(count, f"log/{count}.jsonl, byte 7: no JSON")
        watch.look(now_s)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "cannot be read: 3. The last is in log/3.jsonl, byte 7: no JSON." in caplog.messages[1]


def test_a_log_that_fills_what_is_kept_of_it_is_told_in_time_and_again(caplog: pytest.LogCaptureFixture) -> None:
    looked = Looked(49)
    watch = Watch(cast(Publisher, looked), None)
    said = []
    for now_s, behind in [(0, 49), (5, 50), (10, 60), (610, 60), (615, 80), (620, 90), (1300, 99), (1305, 10), (1310, 10)]:
        looked.retained = Retained(BEGINNING, BEGINNING, behind, 100)
        caplog.clear()
        watch.look(now_s)
        said.append([record.levelname for record in caplog.records])
    assert said == [[], ["WARNING"], [], ["WARNING"], ["ERROR"], [], ["ERROR"], ["WARNING"], []]


def test_that_nobody_knows_how_full_it_is_does_not_end_an_alarm(caplog: pytest.LogCaptureFixture) -> None:
    looked = Looked(None)
    watch = Watch(cast(Publisher, looked), None)
    said = []
    for now_s, behind in [(0, None), (5, 90), (10, None), (15, 90), (20, 10)]:
        looked.retained = Retained(BEGINNING, BEGINNING, behind, 100)
        caplog.clear()
        watch.look(now_s)
        said.append([record.levelname for record in caplog.records])
    assert said == [[], ["ERROR"], [], [], ["WARNING"]]


def test_what_no_restart_helps_ends_it_with_the_reason(folder: Path) -> None:
    running = Running(folder, '[roskva]\napplication = "demo"\nkey = "ä"\n[[roskva.mapping]]\ntable = "t"\nobject = "t:{id}"')
    assert running.process.wait(WAIT_S) == 1, running.text()
    assert "notifier ended with status 2; it is not started again" in running.output.read_text()
    assert "A publish key is a text of printable ASCII characters" in running.output.read_text()
