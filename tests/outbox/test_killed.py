"""Relays that are killed with -9, again and again, while transactions go on: nothing is lost."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from roskva.outbox import sqlalchemy as outbox
from tests.outbox.conftest import APPLICATION, Recorder

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).parents[2]
KILLS = 3
OBJECTS = 4


def start(url: str, service: Recorder) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "roskva.outbox",
        "--database",
        url,
        "--application",
        APPLICATION,
        "--url",
        service.url,
        "--poll-s",
        "0.005",
    ]
    return subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_killed_anywhere_a_relay_loses_nothing(request: pytest.FixtureRequest, kind: str, service: Recorder) -> None:
    """Whoever fetches an object when its highest version is told sees what was committed last."""
    engine: sa.Engine = request.getfixturevalue(kind)
    url = engine.url.render_as_string(hide_password=False)
    dice, stop, written = random.Random(7), threading.Event(), [0] * OBJECTS
    with engine.begin() as connection:
        for number in range(OBJECTS):
            connection.execute(sa.text(f"INSERT INTO documents VALUES ({number}, '0')"))

    def fetch(name: str) -> int:
        with engine.connect() as connection:
            return int(connection.execute(sa.text(f"SELECT title FROM documents WHERE id = {name[4:]}")).scalar_one())

    def write() -> None:
        turn = 0
        while not stop.is_set() or turn % OBJECTS:
            number = turn % OBJECTS
            with engine.begin() as connection:
                connection.execute(sa.text(f"UPDATE documents SET title = '{written[number] + 1}' WHERE id = {number}"))
                outbox.publish(connection, APPLICATION, f"doc:{number}")
            written[number] += 1
            turn += 1
            time.sleep(0.002)

    service.fetch = fetch
    writer = threading.Thread(target=write)
    writer.start()
    relays = [start(url, service), start(url, service)]
    try:
        for _ in range(KILLS):
            told = len(service.told)
            while len(service.told) < told + dice.randrange(1, 4):  # they are at work
                time.sleep(0.001)
            time.sleep(dice.random() * 0.01)
            # The other one goes on, and does again what this one has left half done.
            relay = relays.pop(0)
            relay.kill()
            relay.wait()
            with engine.begin() as connection:  # else the lease's end would be waited for
                connection.execute(sa.text("UPDATE roskva_outbox_relay SET until_ms = 0"))
            relays.append(start(url, service))
        stop.set()
        writer.join()
        with closing(outbox.database(engine)) as database:
            while database.counts():
                time.sleep(0.01)
    finally:
        stop.set()
        writer.join()
        for relay in relays:
            relay.kill()
            relay.wait()
    assert {name: fetched for name, (_, fetched) in service.seen.items()} == {
        f"doc:{number}": count for number, count in enumerate(written)
    }


def test_told_to_stop_it_ends_by_itself_and_gives_its_lease_back(sqlite: sa.Engine, service: Recorder) -> None:
    with sqlite.begin() as connection:
        outbox.publish(connection, APPLICATION, "doc:1")
    relay = start(str(sqlite.url), service)
    while not service.told:
        time.sleep(0.01)
    relay.terminate()
    assert relay.wait(30) == 0
    with closing(outbox.database(sqlite)) as database:
        assert database.counts() == {}
        assert database.lease(APPLICATION, "another", now_ms=1, until_ms=2)
