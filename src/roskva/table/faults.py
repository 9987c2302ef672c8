"""Failure injection for tests: a table that refuses or slows down what a file of rules names. Never part of a real service.

`open_table` puts it around the engine if ROSKVA_TEST_FAULTS names a file, and otherwise does not even import this. The file is looked at
again while the service runs, so a test switches outages on and off under load:

    {"seed": 7, "rules": [{"table": "matcher", "partitions": [1], "operations": ["write"]}]}

Replace it by a rename: a file that cannot be read, or is no such document, leaves the rules as they were. Knows only the contract of
`Table`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import msgspec

from roskva.errors import InvalidSetting, PartitionUnavailable
from roskva.table.interface import Mutation, Row, RowKey, Table

log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 0.1

Operation = Literal["read", "write"]


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which calls, and what becomes of them. A call counts if any of its rows does."""

    table: str
    partitions: list[int] | None = None  # None: all
    prefix: str = ""  # of row keys
    start: str = ""  # row keys from here on
    end: str = ""  # and before this one; empty: to the last
    operations: tuple[Operation, ...] = ("read", "write")
    rate: float = 1.0  # the part of such calls
    slow_s: float = 0.0  # they take so much longer
    fail: bool = True  # and then fail, with nothing done

    def names(self, row: RowKey) -> bool:
        return (
            row.table == self.table
            and (self.partitions is None or row.partition in self.partitions)
            and row.key.startswith(self.prefix.encode())
            and row.key >= self.start.encode()
            and (not self.end or row.key < self.end.encode())
        )


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rules: list[Rule] = []
    seed: int = 0


class FaultyTable:
    """See interface.Table."""

    def __init__(self, table: Table, path: Path) -> None:
        self._table = table
        self._path = path
        self._looked_s = float("-inf")
        self._seen: tuple[int, int, int] | None = None
        self._rules: list[Rule] = []
        self._chance = Random(0)
        try:
            self._take(path.read_bytes())
        except (OSError, msgspec.DecodeError) as error:
            raise InvalidSetting(f"The file of faults {path}, which ROSKVA_TEST_FAULTS names, cannot be used: {error}.") from None

    def write(self, mutations: Sequence[Mutation]) -> None:
        self._suffer("write", (mutation.row for mutation in mutations))
        self._table.write(mutations)

    def read(self, rows: Sequence[RowKey], prefix: bytes = b"", limit: int | None = None, after: bytes = b"") -> dict[RowKey, Row]:
        self._suffer("read", rows)
        return self._table.read(rows, prefix, limit, after)

    def scan(self, table: str, partition: int, after: bytes = b"", limit: int = 1_000) -> Iterator[tuple[bytes, Row]]:
        found = list(self._table.scan(table, partition, after, limit))
        self._suffer("read", [RowKey(table, partition, b""), *(RowKey(table, partition, key) for key, _ in found)])
        return iter(found)

    def delete_rows(self, rows: Sequence[RowKey]) -> None:
        self._suffer("write", rows)
        self._table.delete_rows(rows)

    def forget(self, mutations: Sequence[Mutation]) -> None:
        self._suffer("write", (mutation.row for mutation in mutations))
        self._table.forget(mutations)

    def incarnation(self, table: str, partition: int) -> int:
        return self._table.incarnation(table, partition)

    def complete(self, table: str, partition: int) -> bool:
        return self._table.complete(table, partition)

    def close(self) -> None:
        self._table.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)  # what only this engine has, such as its paths

    def _suffer(self, operation: Operation, rows: Iterable[RowKey]) -> None:
        self._look()
        if not self._rules:
            return
        wanted = list(rows)
        for rule in self._rules:
            row = next((row for row in wanted if rule.names(row)), None) if operation in rule.operations else None
            if row is None or self._chance.random() >= rule.rate:
                continue
            if rule.slow_s:
                time.sleep(rule.slow_s)
            if rule.fail:
                raise PartitionUnavailable("A test lets this fail.", f"table/{row.table}-{row.partition}")

    def _look(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = now_s
        try:
            stat = self._path.stat()
            seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if seen != self._seen:
                self._take(self._path.read_bytes())
                self._seen = seen
        except (OSError, msgspec.DecodeError) as error:
            log.error("the file of faults %s cannot be used, and the rules stay as they were: %s", self._path, error)

    def _take(self, text: bytes) -> None:
        rules = msgspec.json.decode(text, type=Rules)
        self._rules = rules.rules
        self._chance = Random(rules.seed)
