"""Small files that an operator may replace at any time: keys that credentials are verified with, secrets that webhooks are called with."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from roskva.errors import InvalidSetting

FILE_BYTES_MAX: Final = 64 << 10
_LOOK_EVERY_S: Final = 1.0

log = logging.getLogger(__name__)
T = TypeVar("T")


class WatchedFile(Generic[T]):
    """What a file says, read again when it changed; it is looked at once a second at most.

    The first reading raises InvalidSetting if it cannot be used. Later, what cannot be used is logged, and what was read before stays:
    a file that is being replaced may be missing or incomplete for a moment.
    """

    def __init__(self, path: str, parse: Callable[[bytes], T], clock: Callable[[], float]) -> None:
        self._path = Path(path).expanduser()
        self._parse = parse
        self._clock = clock
        self._looked_s = clock()
        self._seen, self._value = self._read()

    def value(self) -> T:
        now_s = self._clock()
        if not 0 <= now_s - self._looked_s < _LOOK_EVERY_S:  # a clock that was set back makes it look, too
            self._looked_s = now_s
            self._look()
        return self._value

    def _look(self) -> None:
        try:
            if self._signature() != self._seen:
                self._seen, self._value = self._read()
                log.info("%s was read again", self._path)
        except InvalidSetting as error:
            log.error("what was read before stays in use: %s", error)

    def _signature(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError as error:
            raise InvalidSetting(f"The file {self._path} cannot be read: {error.strerror}.") from None
        if not stat.S_ISREG(found.st_mode):
            raise InvalidSetting(f"{self._path} is not a file.")  # reading a pipe would wait for whoever writes it
        return found.st_mtime_ns, found.st_ino, found.st_size

    def _read(self) -> tuple[tuple[int, int, int], T]:
        seen = self._signature()  # before it is read: what changes in between is read once more
        try:
            with self._path.open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise InvalidSetting(f"The file {self._path} cannot be read: {os.strerror(error.errno or 0)}.") from None
        if len(content) > FILE_BYTES_MAX:
            raise InvalidSetting(f"The file {self._path} has more than {FILE_BYTES_MAX:,} bytes.")
        try:
            return seen, self._parse(content)
        except InvalidSetting as error:
            raise InvalidSetting(f"The file {self._path} cannot be used: {error.what}") from None
