"""Sets of GTIDs, as MySQL writes them: what a server has committed, or what is gone from its log.

Pure. A GTID is a server's UUID, from 8.3 on perhaps a tag, and a number: `UUID:TAG:NUMBER`. A UUID with a tag is a source of its own here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from roskva.capture.stores.mysql.settings import SOURCE
from roskva.errors import DatastoreUnavailable

_THREAD: Final = re.compile(r"#\d+")


class Gtids(NamedTuple):
    of: Mapping[str, tuple[tuple[int, int], ...]]  # by the source: the first and last number of each interval, in their order

    def last(self, source: str) -> int:
        intervals = self.of.get(source, ())
        return intervals[-1][1] if intervals else 0

    def last_within(self, source: str, first: int, last: int) -> int:
        """The highest number of it that is in here, from `first` to `last`; 0: none."""
        return max((min(end, last) for begin, end in self.of.get(source, ()) if begin <= last and first <= end), default=0)


class Listed(NamedTuple):
    """What had been committed at one place of the log."""

    sequence: int  # the last of the source that is read
    gtids: Gtids


def gtids_of(text: str) -> Gtids:
    """`UUID:1-3:7:TAG:1-2,UUID:5`: numbers count for the tag before them, until the next comma. One that is being committed has its thread
    behind it (`#12`)."""
    found: dict[str, list[tuple[int, int]]] = {}
    for one in _THREAD.sub("", "".join(text.lower().split())).split(","):
        uuid, *parts = one.split(":")
        if not one:
            continue
        if not SOURCE.fullmatch(uuid):
            raise DatastoreUnavailable(f"A set of GTIDs is not understood: {one[:80]!r}.")
        source = uuid
        for part in parts:
            first, _, last = part.partition("-")
            if first.isdecimal() and (last or first).isdecimal():
                found.setdefault(source, []).append((int(first), int(last or first)))
            else:
                source = f"{uuid}:{part}"
    return Gtids({source: tuple(sorted(intervals)) for source, intervals in found.items()})
