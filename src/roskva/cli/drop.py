"""`roskva drop`: begin a part of the data directory, or all of it, anew. It asks first, and says what that costs.

Beside a running service, or without one: the loss goes through the manifest, and whoever uses the partition finds it as it would find
any loss. Settings and keys stay.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from roskva.config import Settings
from roskva.errors import BadRequest, DataOutdated, Unavailable
from roskva.feed import TOPICS, open_feed
from roskva.table import TABLES, open_manifest, open_table
from roskva.table.dropping import drop as drop_partitions
from roskva.table.dropping import drop_outdated, files_of
from roskva.table.manifest import Address

_ALL: Final = "all"
_COSTS: Final = {
    "registrar": 'Every client starts anew by itself, registers again, and is told the latest version, or "unknown", of all its objects.',
    "matcher": 'Every registration is made anew, by a sweep over all clients; everyone is told "unknown", and fetches.',
    "scratch": 'What was put aside there for later is gone, so every registration is made anew, and everyone is told "unknown".',
    "feed": 'Updates accepted and not yet told are gone, so every registration is made anew, and everyone is told "unknown".',
    _ALL: 'Every client starts anew by itself, registers again and is told "unknown". Dead letters are gone. Keys and epochs stay.',
}
_OUTDATED: Final = "This data directory is of an earlier version of Roskva: applications that were reset count from epoch 0 again."
WHAT: Final = tuple(_COSTS)


def addresses(what: str, partitions: int) -> list[Address]:
    """The partitions that `what` stands for; clients' rows last, so that none of them can be of before another one's loss."""
    tables: Iterable[str] = TABLES if what == _ALL else (what,) if what in TABLES else ()
    found = [Address("table", table, partition) for table in tables for partition in range(partitions)]
    if what in ("feed", _ALL):
        found += [Address("feed", topic, partition) for topic in TOPICS for partition in range(partitions)]
    if what == _ALL:
        found.append(Address("subscriptions", "subscriptions", 0))
    return sorted(found, key=lambda address: address.name == "registrar")


def drop(settings: Settings, arguments: argparse.Namespace) -> int:
    what: str = arguments.what
    if not (settings.data / "manifest.db").exists():
        raise BadRequest(f"There is nothing to drop: {settings.data} is not a data directory.")
    try:
        manifest = open_manifest(settings)
    except DataOutdated:
        if what != _ALL:
            raise
        manifest = None
    wanted = addresses(what, settings.partitions)
    size = sum(_size(path) for address in wanted for path in files_of(settings.data, address))
    print(f"drop {what} of {settings.data}: {size / 1e6:,.1f} MB\n{_COSTS[what]}")
    if manifest is None:
        print(_OUTDATED)
    if not arguments.yes and not agreed("drop"):
        print("Nothing was dropped.")
        return 1
    if manifest is None:
        drop_outdated(settings.data, settings.partitions, settings.data_center).close()
    else:
        drop_partitions(manifest, settings.data, wanted)
    _begin_anew(settings, wanted)
    print("Done. A running service notices by itself; `roskva status` shows how it does.")
    return 0


def agreed(command: str) -> bool:
    if not sys.stdin.isatty():
        raise BadRequest(f"`roskva {command}` asks first, and nobody can answer here: there is no terminal. Give --yes to go ahead.")
    print("Type yes to go ahead: ", end="", flush=True)
    return sys.stdin.readline().strip() == "yes"


def _begin_anew(settings: Settings, dropped: Iterable[Address]) -> None:
    """Make the files again, as recovering: what was dropped is repaired from now on, and not only when somebody needs it."""
    for address in dropped:
        with suppress(Unavailable):  # whoever needs it will
            if address.kind == "table":
                open_table(settings).incarnation(address.name, address.partition)
            elif address.kind == "feed":
                open_feed(settings).incarnation(address.name, address.partition)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # a log that the running service closed meanwhile
