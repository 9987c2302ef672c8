"""Checkpoints: where the query stands in the feed. A driver never writes into a predecessor's.

A driver that was killed may leave its JVM running for a moment, and that one could write the commit of a batch which its successor is
still processing; if the successor then died, the batch would count as done. So every driver copies the newest checkpoint of each query
into a folder of its own, DATA/checkpoints/{query}/{number}, before it starts. Checkpoints are not fsynced: after a power loss files may
be empty. What cannot be read is left out: the query then goes back to what can, at worst to the oldest record, and repeats.
Imports no Spark.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from roskva.feed.interface import Position
from roskva.pipeline.offsets import Place, from_json

log = logging.getLogger(__name__)

KEPT: Final = 3
_OFFSETS: Final = "offsets"
_COMMITS: Final = "commits"


def base_folder(data: Path, query: str) -> Path:
    return data.resolve() / "checkpoints" / query


def numbered(base: Path) -> list[Path]:
    """The checkpoints there are, oldest first."""
    if not base.is_dir():
        return []
    return sorted((folder for folder in base.iterdir() if folder.name.isdigit() and folder.is_dir()), key=lambda f: int(f.name))


def prepare(data: Path, query: str) -> Path:
    """A folder of this driver's own, with a copy of the newest checkpoint; only the newest few are kept."""
    base = base_folder(data, query)
    found = numbered(base)
    mine = _next_folder(base, found)
    if found:
        copy_readable(found[-1], mine)
    if not any((mine / _OFFSETS).glob("*")):
        log.warning("there is no checkpoint of the query %s to go on from: it begins with the oldest record", query)
    for old in found[: -KEPT + 1]:
        shutil.rmtree(old, ignore_errors=True)
    return mine


def prepare_empty(data: Path, query: str) -> Path:
    """After Spark could not use a checkpoint: one without a past. The query begins with the oldest record."""
    base = base_folder(data, query)
    return _next_folder(base, numbered(base))


def processed(folder: Path) -> dict[Place, Position]:
    """Where a query that starts from this checkpoint goes on: the end of the newest batch that counts as done. Empty: at the oldest."""
    commits = sorted((int(path.name) for path in (folder / _COMMITS).glob("[0-9]*") if path.name.isdigit()), reverse=True)
    for number in commits:
        try:
            lines = (folder / _OFFSETS / str(number)).read_text().splitlines()
            return from_json(json.loads(lines[2]))
        except (OSError, ValueError, LookupError, AttributeError, TypeError):
            continue
    return {}


def _next_folder(base: Path, found: list[Path]) -> Path:
    base.mkdir(parents=True, exist_ok=True)
    number = int(found[-1].name) + 1 if found else 1
    while True:
        mine = base / str(number)
        try:
            mine.mkdir()
            return mine
        except FileExistsError:
            number += 1  # another driver starts at this moment


def copy_readable(source: Path, target: Path) -> None:
    """Copy what can be read, commits before offsets: a commit must never stand without the offsets that it commits.

    The predecessor may still be writing: what is half written has a name of its own, what is gone was purged.
    """
    commits = _copy_log(source / _COMMITS, target / _COMMITS, 1)
    offsets = _copy_log(source / _OFFSETS, target / _OFFSETS, 2)
    for number in commits - offsets:
        (target / _COMMITS / str(number)).unlink()
    if not offsets:
        shutil.rmtree(target / _COMMITS, ignore_errors=True)
        shutil.rmtree(target / _OFFSETS, ignore_errors=True)
        return
    # The query's id. Without it Spark takes the checkpoint for another query's, or makes a new one.
    _copy_file(source / "metadata", target / "metadata", lambda text: isinstance(json.loads(text), dict))
    sources = source / "sources"
    for path in sorted(sources.rglob("*")) if sources.is_dir() else ():
        if path.is_file() and not path.name.startswith("."):
            _copy_file(path, target / path.relative_to(source), lambda text: bool(text))


def _copy_log(source: Path, target: Path, lines_min: int) -> set[int]:
    """Copies the readable files of a log, named by the batch; answers which."""
    copied: set[int] = set()
    for path in source.iterdir() if source.is_dir() else ():
        if path.name.isdigit():
            if _copy_file(path, target / path.name, lambda text: _is_log(text, lines_min)):
                copied.add(int(path.name))
            else:
                log.warning("%s cannot be read and is left out: what it stood for is repeated", path)
    return copied


def _is_log(text: str, lines_min: int) -> bool:
    """A version, then lines of JSON ("-" stands for a source without an offset)."""
    version, *lines = text.splitlines()
    return version.startswith("v") and len(lines) >= lines_min and all(line == "-" or json.loads(line) is not None for line in lines)


def _copy_file(source: Path, target: Path, readable: Callable[[str], bool]) -> bool:
    try:
        data = source.read_bytes()
        if not readable(data.decode()):
            return False
    except (OSError, ValueError):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return True
