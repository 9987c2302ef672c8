"""RocksDB, to write to it: the C library of the system through ctypes, as much of it as tests, measurements and copies need.

There is no Python package of it that keeps its log readable, and capture itself reads the log without it (rocksdb_wal.py). Debian has the
library as librocksdb7.8.

Blocking. A database is open in one process at a time. Safe from several threads, as long as none closes it under the others.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from roskva.errors import DatastoreUnavailable

_NAMES: Final = ("librocksdb.so", "librocksdb.so.7.8")
_POINTER, _BYTES, _SIZE, _INT, _CHAR = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_ubyte
_ERROR = ctypes.POINTER(ctypes.c_void_p)
_LENGTH = ctypes.POINTER(ctypes.c_size_t)

# name: (result, arguments); c.h of RocksDB, version 7.8.
_FUNCTIONS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "checkpoint_create": (None, [_POINTER, _BYTES, ctypes.c_uint64, _ERROR]),
    "checkpoint_object_create": (_POINTER, [_POINTER, _ERROR]),
    "checkpoint_object_destroy": (None, [_POINTER]),
    "close": (None, [_POINTER]),
    "column_family_handle_destroy": (None, [_POINTER]),
    "create_iterator_cf": (_POINTER, [_POINTER, _POINTER, _POINTER]),
    "drop_column_family": (None, [_POINTER, _POINTER, _ERROR]),
    "flush_cf": (None, [_POINTER, _POINTER, _POINTER, _ERROR]),
    "flushoptions_create": (_POINTER, []),
    "flushoptions_destroy": (None, [_POINTER]),
    "free": (None, [_POINTER]),
    "get_cf": (_POINTER, [_POINTER, _POINTER, _POINTER, _BYTES, _SIZE, _LENGTH, _ERROR]),
    "get_latest_sequence_number": (ctypes.c_uint64, [_POINTER]),
    "iter_destroy": (None, [_POINTER]),
    "iter_get_error": (None, [_POINTER, _ERROR]),
    "iter_key": (_POINTER, [_POINTER, _LENGTH]),
    "iter_next": (None, [_POINTER]),
    "iter_seek_to_first": (None, [_POINTER]),
    "iter_valid": (_CHAR, [_POINTER]),
    "iter_value": (_POINTER, [_POINTER, _LENGTH]),
    "list_column_families": (ctypes.POINTER(_BYTES), [_POINTER, _BYTES, _LENGTH, _ERROR]),
    "list_column_families_destroy": (None, [ctypes.POINTER(_BYTES), _SIZE]),
    "open_column_families": (
        _POINTER,
        [_POINTER, _BYTES, _INT, ctypes.POINTER(_BYTES), ctypes.POINTER(_POINTER), ctypes.POINTER(_POINTER), _ERROR],
    ),
    "options_create": (_POINTER, []),
    "options_destroy": (None, [_POINTER]),
    "options_set_WAL_size_limit_MB": (None, [_POINTER, ctypes.c_uint64]),
    "options_set_WAL_ttl_seconds": (None, [_POINTER, ctypes.c_uint64]),
    "options_set_create_if_missing": (None, [_POINTER, _CHAR]),
    "options_set_create_missing_column_families": (None, [_POINTER, _CHAR]),
    "options_set_recycle_log_file_num": (None, [_POINTER, _SIZE]),
    "options_set_uint64add_merge_operator": (None, [_POINTER]),
    "options_set_wal_compression": (None, [_POINTER, _INT]),
    "options_set_wal_recovery_mode": (None, [_POINTER, _INT]),
    "options_set_write_buffer_size": (None, [_POINTER, _SIZE]),
    "readoptions_create": (_POINTER, []),
    "readoptions_destroy": (None, [_POINTER]),
    "write": (None, [_POINTER, _POINTER, _POINTER, _ERROR]),
    "writebatch_create": (_POINTER, []),
    "writebatch_delete_cf": (None, [_POINTER, _POINTER, _BYTES, _SIZE]),
    "writebatch_delete_range_cf": (None, [_POINTER, _POINTER, _BYTES, _SIZE, _BYTES, _SIZE]),
    "writebatch_destroy": (None, [_POINTER]),
    "writebatch_merge_cf": (None, [_POINTER, _POINTER, _BYTES, _SIZE, _BYTES, _SIZE]),
    "writebatch_put_cf": (None, [_POINTER, _POINTER, _BYTES, _SIZE, _BYTES, _SIZE]),
    "writebatch_put_log_data": (None, [_POINTER, _BYTES, _SIZE]),
    "writebatch_singledelete_cf": (None, [_POINTER, _POINTER, _BYTES, _SIZE]),
    "writeoptions_create": (_POINTER, []),
    "writeoptions_destroy": (None, [_POINTER]),
    "writeoptions_disable_WAL": (None, [_POINTER, _INT]),
    "writeoptions_set_sync": (None, [_POINTER, _CHAR]),
}


@functools.cache
def library_path() -> str | None:
    """What the dynamic linker finds it by; None: it is not installed."""
    for name in _NAMES:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return ctypes.util.find_library("rocksdb")  # starts programs: last


@functools.cache
def _library() -> dict[str, Any]:
    path = library_path()
    if path is None:
        raise DatastoreUnavailable("The library of RocksDB was not found: install it (Debian: librocksdb7.8).")
    loaded = ctypes.CDLL(path)
    functions = {}
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, f"rocksdb_{name}")
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return functions


class RocksDB:
    """A database, open for writing. Without `wal_ttl_s` or `wal_size_limit_mb` its log is gone as soon as it is flushed."""

    def __init__(
        self,
        directory: Path,
        families: Sequence[str] = (),
        *,
        wal_ttl_s: int = 0,
        wal_size_limit_mb: int = 0,
        write_buffer_bytes: int = 64 << 20,
        counters: bool = False,  # merges add numbers of 64 bits
        recycled_logs: int = 0,  # only if the log is not kept
        wal_compression: int = 0,
    ) -> None:
        self._call = call = _library()
        self._options = call["options_create"]()
        call["options_set_create_if_missing"](self._options, 1)
        call["options_set_create_missing_column_families"](self._options, 1)
        call["options_set_WAL_ttl_seconds"](self._options, wal_ttl_s)
        call["options_set_WAL_size_limit_MB"](self._options, wal_size_limit_mb)
        call["options_set_write_buffer_size"](self._options, write_buffer_bytes)
        call["options_set_wal_compression"](self._options, wal_compression)
        if counters:
            call["options_set_uint64add_merge_operator"](self._options)
        if recycled_logs:
            call["options_set_wal_recovery_mode"](self._options, 3)  # skip what is corrupted: RocksDB 7.8 recycles with no other one
            call["options_set_recycle_log_file_num"](self._options, recycled_logs)
        self._reading, self._flushing = call["readoptions_create"](), call["flushoptions_create"]()
        self._database: int | None = None
        self._families: dict[str, int] = {}
        try:
            names = dict.fromkeys(["default", *families, *self._existing(directory)])
            self._open(directory, list(names))
        except BaseException:
            self.close()
            raise

    def batch(self) -> WriteBatch:
        return WriteBatch(self._call, self._families)

    def write(self, batch: WriteBatch, *, sync: bool = False, log: bool = True) -> None:
        """All of the batch or nothing. Without `log` it is not written to the log: nobody who reads that will know of it."""
        options = self._call["writeoptions_create"]()
        self._call["writeoptions_set_sync"](options, sync)
        self._call["writeoptions_disable_WAL"](options, not log)
        try:
            self._checked("write", self._database, options, batch.pointer)
        finally:
            self._call["writeoptions_destroy"](options)

    def put(self, key: bytes, value: bytes, family: str = "default") -> None:
        with self.batch() as batch:
            batch.put(key, value, family)
            self.write(batch)

    def delete(self, key: bytes, family: str = "default") -> None:
        with self.batch() as batch:
            batch.delete(key, family)
            self.write(batch)

    def get(self, key: bytes, family: str = "default") -> bytes | None:
        length = ctypes.c_size_t()
        found = self._checked("get_cf", self._database, self._reading, self._families[family], key, len(key), ctypes.byref(length))
        if not found:
            return None
        try:
            return ctypes.string_at(found, length.value)
        finally:
            self._call["free"](found)

    def items(self, family: str = "default") -> Iterator[tuple[bytes, bytes]]:
        """As of now, in the order of their keys."""
        call, length = self._call, ctypes.c_size_t()
        iterator = call["create_iterator_cf"](self._database, self._reading, self._families[family])
        try:
            call["iter_seek_to_first"](iterator)
            while call["iter_valid"](iterator):
                key = ctypes.string_at(call["iter_key"](iterator, ctypes.byref(length)), length.value)
                yield key, ctypes.string_at(call["iter_value"](iterator, ctypes.byref(length)), length.value)
                call["iter_next"](iterator)
            self._checked("iter_get_error", iterator)
        finally:
            call["iter_destroy"](iterator)

    @property
    def families(self) -> list[str]:
        return list(self._families)

    def drop_family(self, family: str) -> None:
        handle = self._families.pop(family)
        self._checked("drop_column_family", self._database, handle)
        self._call["column_family_handle_destroy"](handle)

    def latest_sequence(self) -> int:
        return int(self._call["get_latest_sequence_number"](self._database))

    def flush(self) -> None:
        """Memory to tables; a new log begins, and the old one is archived or gone."""
        for handle in self._families.values():
            self._checked("flush_cf", self._database, self._flushing, handle)

    def checkpoint(self, directory: Path) -> None:
        """A copy as of now, which can be opened as a database of its own. The directory must not be there."""
        maker = self._checked("checkpoint_object_create", self._database)
        try:
            self._checked("checkpoint_create", maker, str(directory).encode(), 0)
        finally:
            self._call["checkpoint_object_destroy"](maker)

    def close(self) -> None:
        """Idempotent."""
        if self._database is not None:
            for handle in self._families.values():
                self._call["column_family_handle_destroy"](handle)
            self._call["close"](self._database)
            self._database = None
            self._families.clear()
        if self._options is not None:
            self._call["options_destroy"](self._options)
            self._call["readoptions_destroy"](self._reading)
            self._call["flushoptions_destroy"](self._flushing)
            self._options = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _existing(self, directory: Path) -> list[str]:
        if not (directory / "CURRENT").exists():
            return []
        count = ctypes.c_size_t()
        names = self._checked("list_column_families", self._options, str(directory).encode(), ctypes.byref(count))
        try:
            return [names[number].decode() for number in range(count.value)]
        finally:
            self._call["list_column_families_destroy"](names, count)

    def _open(self, directory: Path, names: list[str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        count = len(names)
        handles = (_POINTER * count)()
        encoded = (_BYTES * count)(*(name.encode() for name in names))
        options = (_POINTER * count)(*[self._options] * count)
        self._database = self._checked("open_column_families", self._options, str(directory).encode(), count, encoded, options, handles)
        self._families = {name: handle for name, handle in zip(names, handles, strict=True) if handle is not None}

    def _checked(self, name: str, *arguments: Any) -> Any:
        error = ctypes.c_void_p()
        result = self._call[name](*arguments, ctypes.byref(error))
        if error.value:
            message = ctypes.string_at(error.value).decode(errors="replace")
            self._call["free"](error)
            raise DatastoreUnavailable(f"RocksDB refused {name.replace('_', ' ')}: {message}.")
        return result


class WriteBatch:
    """Operations that are written together. Of one database; to be closed."""

    def __init__(self, call: dict[str, Any], families: dict[str, int]) -> None:
        self._call = call
        self._families = families
        self.pointer: int | None = call["writebatch_create"]()

    def put(self, key: bytes, value: bytes, family: str = "default") -> None:
        self._call["writebatch_put_cf"](self.pointer, self._families[family], key, len(key), value, len(value))

    def delete(self, key: bytes, family: str = "default") -> None:
        self._call["writebatch_delete_cf"](self.pointer, self._families[family], key, len(key))

    def single_delete(self, key: bytes, family: str = "default") -> None:
        self._call["writebatch_singledelete_cf"](self.pointer, self._families[family], key, len(key))

    def delete_range(self, begin: bytes, end: bytes, family: str = "default") -> None:
        self._call["writebatch_delete_range_cf"](self.pointer, self._families[family], begin, len(begin), end, len(end))

    def merge(self, key: bytes, operand: bytes, family: str = "default") -> None:
        self._call["writebatch_merge_cf"](self.pointer, self._families[family], key, len(key), operand, len(operand))

    def log_data(self, blob: bytes) -> None:
        """Written to the log alone."""
        self._call["writebatch_put_log_data"](self.pointer, blob, len(blob))

    def close(self) -> None:
        if self.pointer is not None:
            self._call["writebatch_destroy"](self.pointer)
            self.pointer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
