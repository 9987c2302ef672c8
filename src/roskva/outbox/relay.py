"""The relay: brings what transactions have left in the outbox to the service (rows.py says in which steps, and why nothing is lost).

Many may run, beside each other and on several machines: one works for an application at a time, and another takes over within `lease_s`
if that one dies. A row that the service calls invalid stays in the table with the reason; everything else is tried again until the
service takes it. One relay publishes up to `rows_max` rows with one request, so it follows some thousand commits per second.

Blocking, and belongs to one thread. `python -m roskva.outbox` runs one over SQLAlchemy, `manage.py roskva_relay` over Django.
"""

from __future__ import annotations

import logging
import random
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from roskva.errors import InvalidDevice, InvalidName, InvalidVersion, RoskvaError
from roskva.outbox.rows import Database, Row
from roskva.publisher import Change, pause_s

log = logging.getLogger(__name__)

ROWS_MAX: Final = 1_000
POLL_S: Final = 0.2
LEASE_S: Final = 30.0
# Of one row alone: no repetition makes it valid.
INVALID: Final = (InvalidName, InvalidVersion, InvalidDevice)


class Publishing(Protocol):
    """What is needed of roskva.BlockingPublisher. Each has an application, and its key."""

    def publish_many(self, changes: Iterable[Change]) -> list[RoskvaError | None]: ...


class Relay:
    """Between one database and the service, for these applications; rows of others stay where they are.

    One application after the other: if the service is slow for one of them, the others wait. Where that matters, each has its own relay.
    """

    def __init__(
        self,
        database: Database,
        publishers: Mapping[str, Publishing],
        *,
        rows_max: int = ROWS_MAX,
        poll_s: float = POLL_S,
        lease_s: float = LEASE_S,
        name: str = "",
    ) -> None:
        self.relayed = self.refused = 0  # rows
        self.problems: dict[str, RoskvaError] = {}  # by application: why its rows wait
        self._database = database
        self._publishers = dict(publishers)
        self._rows_max = rows_max
        self._poll_s = poll_s
        self._lease_s = lease_s
        self._holder = name or f"{socket.gethostname()[:40]}/{secrets.token_hex(6)}"
        self._prepared: set[str] = set()

    def once(self) -> int:
        """Up to `rows_max` rows of each application. The answer: how many are done. What the database's driver raises is not caught."""
        return sum(self._relay(application, publisher) for application, publisher in self._publishers.items())

    def run(self, stop: threading.Event) -> None:
        """Until it is told to stop. The database may go and come back meanwhile, as may the service."""
        failures = 0
        while not stop.is_set():
            try:
                done = self.once()
                failures = failures + 1 if self.problems else 0
            except Exception:  # of the driver, whatever it is called there
                failures += 1
                done = 0
                log.exception("The outbox cannot be read, and is looked at again.")
            if done == 0:
                stop.wait(pause_s(failures, 0.0, random.random()) if failures else self._poll_s)
        self.close()

    def close(self) -> None:
        """Give the lease back, so that another relay need not wait for its end, and close the database's connection."""
        try:
            for application in self._prepared:
                self._database.release(application, self._holder)
        except Exception:  # it ends by itself, too
            log.info("The lease was not given back: the database does not answer.")
        self._database.close()

    def _relay(self, application: str, publisher: Publishing) -> int:
        if application not in self._prepared:
            try:
                self._database.prepare(application)
            except Exception:  # another relay did it at the same moment; if it is something else, it is raised now
                self._database.prepare(application)
            self._prepared.add(application)
        rows = self._database.waiting(application, self._rows_max)
        if not rows:
            self.problems.pop(application, None)
            return 0
        now_us = time.time_ns() // 1_000
        if not self._database.lease(application, self._holder, now_us // 1_000, now_us // 1_000 + int(self._lease_s * 1_000)):
            self._prepared.discard(application)  # another relay works; or somebody emptied the table, then the row is made again
            return 0
        # After the rows were read, and not before: rows.py says why.
        changes = coalesced(rows, self._database.next_version(application, now_us))
        errors = publisher.publish_many(changes.values())
        return self._settle(application, rows, dict(zip(changes, errors, strict=True)))

    def _settle(self, application: str, rows: Sequence[Row], errors: Mapping[str, RoskvaError | None]) -> int:
        done = []
        waits: RoskvaError | None = None
        for row in rows:
            error = errors[row.object]
            if error is None:
                done.append(row.id)
            elif isinstance(error, INVALID):
                self.refused += 1
                self._database.refuse(row.id, error.code)
                log.error("Row %d of the outbox was refused, and stays there: %s", row.id, error)
            else:
                waits = error
        self._database.delete(done)
        self.relayed += len(done)
        if waits is None:
            self.problems.pop(application, None)
        else:
            if application not in self.problems:
                log.warning("The service does not take what application %s has published, and is asked again: %s", application, waits)
            self.problems[application] = waits
        return len(done)


def coalesced(rows: Iterable[Row], version: int) -> dict[str, tuple[str, int, str | None]]:
    """What to publish of each object: the highest version, and a source only if all have the same: each knows its own change alone."""
    found: dict[str, tuple[str, int, str | None]] = {}
    for row in rows:
        own = version if row.version is None else row.version
        before = found.get(row.object)
        if before is None:
            found[row.object] = (row.object, own, row.source)
        else:
            found[row.object] = (row.object, max(own, before[1]), row.source if row.source == before[2] else None)
    return found


def run_until_signal(relay: Relay) -> None:
    """Until SIGTERM or SIGINT. For programs that are a relay and nothing else."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    relay.run(stop)
