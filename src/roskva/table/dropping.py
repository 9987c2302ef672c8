"""Dropping partitions on purpose: the same as losing them, in the order that a loss has, and without keeping the files.

The loss is recorded first, with the incarnation that was seen; only then do files go. So this works beside a running service, which
notices as it would notice any loss, and without one. Whoever opens a partition next makes it anew, as recovering, and what it held is
repaired. Must not import an engine, asyncio or Spark.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from roskva.table.files import LOST_FOLDER
from roskva.table.manifest import Address, Manifest

FOLDERS: Final = {"table": "table", "feed": "feed", "subscriptions": "feed"}  # of the data directory, by kind
_FILE: Final = re.compile(r"(?P<partition>[a-z-]+-\d+)\.(?P<incarnation>\d{1,18})\.db(-wal|-shm)?")


def drop(manifest: Manifest, data: Path, addresses: Iterable[Address]) -> int:
    """Lose these partitions and remove their files; answers how many there were. One that was lost since it was looked at is left."""
    dropped = 0
    records = manifest.snapshot().records
    for address in addresses:
        record = records.get(address)
        if record is None:
            continue
        if record.created:
            dropped += manifest.record_lost(*address, record.incarnation)
        for path in files_of(data, address):
            if int(path.name.split(".")[1]) <= record.incarnation:
                path.unlink(missing_ok=True)
    return dropped


def files_of(data: Path, address: Address) -> Iterator[Path]:
    """The files of a partition, of all its incarnations, those put aside included."""
    folder = data / FOLDERS[address.kind]
    for place in (folder, folder / LOST_FOLDER):
        for path in place.iterdir() if place.is_dir() else ():
            found = _FILE.fullmatch(path.name)
            if found is not None and found["partition"] == f"{address.name}-{address.partition}":
                yield path


def drop_outdated(data: Path, partitions: int, data_center: str) -> Manifest:
    """Drop all of a data directory of an older schema: nobody knows what is in it. Answers the manifest of the new deployment.

    The new manifest is made while the old files lie there, so that nothing counts as complete: clients may hold what it never heard of.
    """
    path = data / "manifest.db"
    Manifest.set_outdated_aside(path)
    manifest = Manifest.open(path, partitions, data_center)
    first = min((record.incarnation for record in manifest.snapshot().records.values()), default=None)
    for folder in sorted({*FOLDERS.values()}):
        for place in (data / folder, data / folder / LOST_FOLDER):
            for file in list(place.iterdir()) if place.is_dir() else ():
                found = _FILE.fullmatch(file.name)
                if found is not None and (first is None or int(found["incarnation"]) < first):
                    file.unlink(missing_ok=True)
    shutil.rmtree(data / "checkpoints", ignore_errors=True)
    return manifest
