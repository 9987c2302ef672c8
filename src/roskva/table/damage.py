"""Damage of a SQLite log that SQLite itself keeps silent about.

SQLite notices a page that is no page, and a file that is too short. Of a damaged log (`-wal`) it takes what comes before the damage,
without a word: what was acknowledged after it would have vanished. The index beside the log (`-shm`) outlives the process that wrote
it, so what it counted before a file was opened is compared with what the opening found. What cannot be seen this way is in
docs/operations.md.

POSIX locks: a process that closes any descriptor of a file gives up all its locks on it, those of SQLite's connections included. So the
index is opened before the first connection to its file, and closed after the last one. The log itself has no locks. The formats:
https://www.sqlite.org/walformat.html. Must not import asyncio or Spark.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from dataclasses import dataclass
from typing import Final, NamedTuple

_MAGIC: Final = (0x377F0682, 0x377F0683)  # the sums of a log are counted in words of little or big end
_LOG_HEAD_BYTES: Final = 32
_FRAME_HEAD_BYTES: Final = 24
_INDEX_HEAD_BYTES: Final = 48  # it is written twice, one after the other
_FRAMES_LOOKED_AT_MAX: Final = 20_000  # SQLite begins a log anew after some 1,000, unless a reader holds it up
_LOOKS: Final = 3  # others may be writing: what is seen once may be half of a change
_LOOK_PAUSE_S: Final = 0.005


class LogIndex(NamedTuple):
    """What the index says: which generation of the log it counted, and how many frames, of a page each, are committed."""

    salts: bytes
    frames: int
    page_bytes: int

    def bytes_least(self) -> int:
        return _LOG_HEAD_BYTES + self.frames * (self.page_bytes + _FRAME_HEAD_BYTES) if self.frames else 0


class Before(NamedTuple):
    """How a log was before its file was opened."""

    counted: LogIndex
    shortened: bool  # it held less than its index counts


@dataclass(slots=True)
class _Watched:
    descriptor: int | None = None  # of the index, once there is one
    connections: int = 0


_turn = threading.Lock()
_watched: dict[str, _Watched] = {}


def _forget_the_parents() -> None:
    """We were forked. The parent's descriptors stay open here: to close them later would give up locks of our own."""
    global _turn
    _turn = threading.Lock()
    _watched.clear()


os.register_at_fork(after_in_child=_forget_the_parents)


def watch(path: str) -> Before | None:
    """Call it before a connection to the file is opened, and `release` after it was closed. None: there is no index to compare with."""
    with _turn:
        _watched.setdefault(path, _Watched()).connections += 1
    index = _index_at(path)
    if index is None:
        return None
    try:
        log_bytes = os.stat(path + "-wal").st_size
    except FileNotFoundError:
        log_bytes = 0
    return Before(index, shortened=log_bytes < index.bytes_least() and _index_at(path) == index)


def release(path: str) -> None:
    with _turn:
        watched = _watched.get(path)
        if watched is None:
            return  # opened before a fork
        watched.connections -= 1
        if watched.connections <= 0:
            del _watched[path]
            if watched.descriptor is not None:
                os.close(watched.descriptor)


def damage_of_log(path: str, before: Before | None) -> str:
    """What is wrong with the log of a file that was just opened; empty if nothing is. `before`: what `watch` answered."""
    if before is not None and before.shortened:
        return "its log is too short"
    damage = ""
    for look in range(_LOOKS):
        if look:
            time.sleep(_LOOK_PAUSE_S)
        damage = _look(path, None if before is None else before.counted)
        if not damage:
            break
    return damage


def _look(path: str, before: LogIndex | None) -> str:
    log = _opened(path + "-wal")
    if log is None:
        return ""  # whoever compares the files with what was opened notices that
    try:
        head = os.pread(log, _LOG_HEAD_BYTES, 0)
        if len(head) == _LOG_HEAD_BYTES and not _is_log_head(head):
            return "its log does not begin like one"
        now = _index_at(path)
        if now is None:
            return ""
        if before is not None and before.salts == now.salts and now.frames < before.frames:
            return f"of {before.frames:,} pages in its log {now.frames:,} can be read"
        overwritten = not _is_of_one_generation(log, now)
        again = _index_at(path)
        return "pages of its log were overwritten" if overwritten and again is not None and again.salts == now.salts else ""
    finally:
        os.close(log)


def _is_of_one_generation(log: int, index: LogIndex) -> bool:
    """Whether the head of every committed frame is of this generation of the log."""
    step = index.page_bytes + _FRAME_HEAD_BYTES
    first = max(0, index.frames - _FRAMES_LOOKED_AT_MAX)
    return all(os.pread(log, 8, _LOG_HEAD_BYTES + number * step + 8) == index.salts for number in range(first, index.frames))


def _is_log_head(head: bytes) -> bool:
    if struct.unpack_from(">I", head)[0] not in _MAGIC:
        return False
    words = struct.unpack_from("<6I" if head[3] == _MAGIC[0] & 0xFF else ">6I", head)
    one = two = 0
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return struct.unpack_from(">2I", head, 24) == (one, two)


def _index_at(path: str) -> LogIndex | None:
    """The index through the descriptor that is kept, if that is still of the file at the path."""
    with _turn:
        watched = _watched.get(path)
        if watched is None:
            return None
        if watched.descriptor is None:
            watched.descriptor = _opened(path + "-shm")
        if watched.descriptor is None:
            return None
        try:
            if os.fstat(watched.descriptor).st_ino != os.stat(path + "-shm").st_ino:
                return None
        except FileNotFoundError:
            return None
        return _index(watched.descriptor)


def _index(descriptor: int) -> LogIndex | None:
    """None: it is not filled yet, or it is just being changed."""
    head = os.pread(descriptor, 2 * _INDEX_HEAD_BYTES, 0)
    one, two = head[:_INDEX_HEAD_BYTES], head[_INDEX_HEAD_BYTES:]
    if len(two) < _INDEX_HEAD_BYTES or one != two or not one[12]:
        return None
    page_bytes, frames = struct.unpack_from("=HI", one, 14)
    return LogIndex(one[32:40], frames, 65_536 if page_bytes == 1 else page_bytes)


def _opened(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
