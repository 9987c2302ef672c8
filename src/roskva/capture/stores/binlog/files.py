"""The files of one server's log, and in which of them a commit is (Wormhole 3.3.2: the mapper).

Each file begins with a list of what had been committed when it began. Which list that is, and what of it counts, is for `stores/mariadb`
and `stores/mysql` to say. Files and offsets are a server's own; sequence numbers are the same at every replica.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Final, Generic, Protocol, TypeVar

from roskva.capture.positions import Position
from roskva.capture.stores.binlog.protocol import Session, Start
from roskva.capture.stores.binlog.settings import ServerSettings
from roskva.errors import CaptureRefused, DatastoreUnavailable

FILES_REMEMBERED_MAX: Final = 4096  # lists of files, which never change; at the limit all are forgotten, and asked for again
_LIST_ROWS: Final = 5  # a file's list is among its first events


class Committed(Protocol):
    """What had been committed at one place of the log."""

    @property
    def sequence(self) -> int:
        """The last number."""
        ...


List = TypeVar("List", bound=Committed)
Given = TypeVar("Given", bound=ServerSettings)


class Remembered(Generic[List]):
    """The lists at the beginnings of files that are written no more, for all calls of one datastore. RESET MASTER gives the names of files
    again: a file of another size is another one, and a list that is ahead of the log is of a log that is gone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lists: dict[tuple[str, int], List] = {}

    def get(self, file: tuple[str, int], end: int) -> List | None:
        with self._lock:
            found = self._lists.get(file)
            if found is not None and found.sequence > end:
                self._lists.clear()
                return None
            return found

    def put(self, file: tuple[str, int], listed: List) -> None:
        with self._lock:
            if len(self._lists) >= FILES_REMEMBERED_MAX:
                self._lists.clear()
            self._lists[file] = listed


class Files(ABC, Generic[List, Given]):
    """A look at the log of a server, as it was when this was made."""

    kind_of_list: str  # of the event that has it, as SHOW BINLOG EVENTS names it
    state: List  # at the log's end
    files: list[tuple[str, int]]  # names and bytes

    def __init__(self, session: Session, settings: Given, remembered: Remembered[List]) -> None:
        self._session = session
        self._settings = settings
        self._remembered = remembered
        self._begins_last: List | None = None  # the last file's list: for this look alone

    @abstractmethod
    def _listed(self, text: str) -> List:
        """What SHOW BINLOG EVENTS shows of a list."""

    @abstractmethod
    def position(self, sequence: int) -> Position:
        """After the commit that has this number."""

    @abstractmethod
    def start_after(self, position: Position) -> Start:
        """Where to begin so that nothing after the position is missed; some of before may come."""

    @property
    @abstractmethod
    def oldest(self) -> Position: ...

    @property
    def end(self) -> Position:
        return self.position(self.state.sequence)

    def _list_files(self) -> list[tuple[str, int]]:
        files = [(str(row[0]), int(row[1])) for row in self._session.rows("SHOW BINARY LOGS")]
        if not files:
            raise DatastoreUnavailable(f"The {self._settings.engine} server at {self._settings.where} has no file of its binary log.")
        return files

    def begins(self, place: int) -> List:
        """What had been written when this file began."""
        file, _ = entry = self.files[place]
        written_no_more = place + 1 < len(self.files)
        known = self._remembered.get(entry, self.state.sequence) if written_no_more else self._begins_last
        if known is not None:
            return known
        found = self._session.rows(f"SHOW BINLOG EVENTS IN %s LIMIT {_LIST_ROWS}", (file,))
        lists = [str(row[5]) for row in found if row[2] == self.kind_of_list]
        if not lists:
            raise CaptureRefused(
                f"The file {file} of the log at {self._settings.where} has no list of GTIDs: it is not one that {self._settings.engine} "
                "writes today."
            )
        listed = self._listed(lists[0])
        if written_no_more:
            self._remembered.put(entry, listed)
        else:
            self._begins_last = listed
        return listed

    def file_of(self, sequence: int) -> int:
        """The place of the file in which the commit after this sequence number is, or will be."""
        low, high = 0, len(self.files) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.begins(middle).sequence <= sequence:
                low = middle
            else:
                high = middle - 1
        return low

    def whole_up_to(self, file: str) -> int | None:
        """The last sequence number that is whole in this file: what the next one begins with. None: it is the last, and written to."""
        names = [name for name, _ in self.files]
        if file not in names:
            raise DatastoreUnavailable(f"The file {file} of the log at {self._settings.where} was removed while it was read.")
        place = names.index(file)
        return None if place == len(names) - 1 else self.begins(place + 1).sequence

    def bytes_after(self, position: Position) -> int:
        """Bytes of log from there to the end; about, as if all commits of a file were of one size."""
        place = self.file_of(position.sequence)
        begin = self.begins(place).sequence
        end = self.begins(place + 1).sequence if place + 1 < len(self.files) else self.end.sequence
        share = (end - max(begin, min(end, position.sequence))) / (end - begin) if end > begin else 0.0
        return round(self.files[place][1] * share) + sum(size for _, size in self.files[place + 1 :])

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.files)
