"""When the registrations are compared and stated anew: the Registration Sync Protocol, the client's side (Thialfi 4.1.3). Pure.

The client decides: it states its registrations when the summaries differ and nothing is in flight, with a pause that
doubles from one attempt to the next until they agree. A server's request is a hint, obeyed at most once a minute. Up to
FULL_SYNC_MAX registrations are stated in one message; above that the summaries of the buckets go first, and then, when the
server has named those that differ, what they hold. A statement is authoritative for the buckets that it names, so no bucket
is split over two messages. Of many that differ only some are stated, with the summaries again behind them: their answer says that those
are dealt with, and names the rest. So a service is never asked for more at once than it has room for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from roskva.client.desired import Desired
from roskva.probes import reached
from roskva.protocol.messages import BUCKETS, FULL_SYNC_MAX, Sync

HINT_INTERVAL_S: Final = 60.0
STATEMENTS_MAX: Final = 50  # messages at once; a service refuses what comes when a hundred of a client wait


@dataclass(slots=True)
class Syncing:
    """The one attempt that may be in flight. `not_before` is when it is repeated, or when the next may begin."""

    in_flight: bool = False
    asked_op: int = 0  # of the bucket summaries that wait for an answer
    differing: int = BUCKETS + 1  # buckets, by the last answer to such
    attempts: int = 0
    not_before: float = float("-inf")
    last: float = float("-inf")

    def agreed(self) -> None:
        self.in_flight = False
        self.asked_op = self.attempts = 0
        self.differing = BUCKETS + 1
        self.not_before = float("-inf")

    def interrupted(self) -> None:
        """The channel or the session is gone, and with it the answer. The count of attempts stays: it slows a loop down."""
        self.in_flight = False
        self.asked_op = 0
        self.differing = BUCKETS + 1
        self.not_before = float("-inf")

    def named(self, buckets: int) -> bool:
        """The server has named so many that differ. Whether they are fewer than before: then nothing speaks against going on at once."""
        fewer, self.differing = buckets < self.differing, buckets
        self.asked_op = 0
        if fewer:
            self.attempts = min(self.attempts, 1)
        return fewer

    def sent(self, now: float, op: int, pause_s: float, asks: bool) -> None:
        self.in_flight = True
        self.asked_op = op if asks else 0
        self.attempts += 1
        self.last = now
        self.not_before = now + pause_s

    def again_at(self, until: float) -> None:
        """The server had no room and said until when."""
        if self.in_flight:
            self.not_before = min(self.not_before, until)

    def hinted(self, now: float) -> bool:
        """The server asks for a statement, and we may give it at once."""
        return not self.in_flight and now - self.last >= HINT_INTERVAL_S


def statement(desired: Desired, op: int, objects_max: int) -> Sync:
    """All registrations if they are few, else the summaries of their buckets."""
    if len(desired) <= min(FULL_SYNC_MAX, objects_max):
        reached("client: states all registrations")
        return Sync(op=op, objects=[desired.sync_object(name) for name in desired])
    reached("client: states summaries of buckets")
    return Sync(op=op, summaries=desired.bucket_summaries())


def bucket_statements(desired: Desired, buckets: Sequence[int], first_op: int, objects_max: int, at_once_max: int) -> list[Sync]:
    """What the named buckets hold, whole buckets together up to `objects_max` objects a message; of the first of them, if they hold more
    than `at_once_max` or need more than STATEMENTS_MAX messages.

    A single bucket above the limit goes alone: with 100,000 registrations a bucket holds about 390 objects, limits are 1,000.
    """
    statements: list[Sync] = []
    names: list[bytes] = []
    chosen: list[int] = []
    stated = 0
    for bucket, members in sorted(desired.by_bucket(buckets).items()):
        if stated and stated + len(members) > at_once_max:
            break
        stated += len(members)
        if chosen and len(names) + len(members) > objects_max:
            statements.append(_bucket_statement(desired, first_op + len(statements), chosen, names))
            names, chosen = [], []
            if len(statements) == STATEMENTS_MAX:
                break
        chosen.append(bucket)
        names.extend(members)
    if chosen:
        statements.append(_bucket_statement(desired, first_op + len(statements), chosen, names))
    return statements


def _bucket_statement(desired: Desired, op: int, buckets: list[int], names: list[bytes]) -> Sync:
    return Sync(op=op, objects=[desired.sync_object(name) for name in names], buckets=buckets)
