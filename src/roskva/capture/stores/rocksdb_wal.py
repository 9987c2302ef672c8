"""The form of RocksDB's log: blocks, records and write batches, in the files *.log (and of its MANIFEST, which has the same blocks).

Blocks of 32 KiB; in them pieces of records, each with a checksum, a length and a kind (db/log_format.h); a record is a write batch: the
sequence number of its first operation, how many there are, and the operations (db/write_batch.cc, db/dbformat.h). The form is the one of
LevelDB from 2011, with additions; what is not known here is refused by name, never skipped.

A record is there when all its pieces are, with the right checksums. Anything else (the end of the file, zeros of space that was set aside,
a torn piece after a crash, what a recycled file held before) means that nothing follows yet; RocksDB stops there, too, when it recovers.

Pure, but for the checksum: that of the library, if it is installed, which is a hundred times as fast as our own.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Generator, Iterator
from typing import Final, NamedTuple, TypeAlias

from roskva.capture.stores.rocksdb_library import library_path
from roskva.errors import CaptureRefused

BLOCK_BYTES: Final = 32768
BATCH_HEADER: Final = struct.Struct("<QI")  # sequence of the first operation, operations
_PIECE: Final = struct.Struct("<IHB")  # checksum, length, kind
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_RECYCLABLE: Final = 4  # added to the kinds above: then the number of the log stands in the piece, too
_COMPRESSION: Final = 9
_TIMESTAMP_SIZES: Final = (10, 11)
_IGNORABLE: Final = 0x80  # kinds of later versions that a reader may leave out

DELETE, PUT, MERGE, LOG_DATA, SINGLE_DELETE, NOOP, DELETE_RANGE, ENTITY = 0, 1, 2, 3, 7, 13, 15, 22
_OF_A_FAMILY: Final = {4: DELETE, 5: PUT, 6: MERGE, 8: SINGLE_DELETE, 14: DELETE_RANGE, 23: ENTITY}
_HAS_VALUE: Final = frozenset({PUT, MERGE, DELETE_RANGE, ENTITY})
_HAS_KEY: Final = _HAS_VALUE | {DELETE, SINGLE_DELETE}


class Record(NamedTuple):
    content: bytes
    begin: int  # in the file
    end: int


# Sequence, kind, column family, key, value, what the producer wrote into the log alone since the last one, bytes. A plain tuple: with names
# they take more than twice as long to make.
Operation: TypeAlias = tuple[int, int, int, bytes, bytes, tuple[bytes, ...], int]


def records(data: bytes, begin: int, log_number: int, *, resume: bool = False) -> Generator[Record, None, bool]:
    """The whole records in this part of a file, which stands at `begin` there, where a record begins; with `resume` at the beginning of a
    block, in which the rest of an earlier record may come first. Returns whether it ended because the data did, in the middle of a record.
    """
    length_max, at, start, pieces = len(data), 0, 0, list[bytes]()
    checksum, inside = checksum_of(data), False
    while True:
        left = BLOCK_BYTES - (begin + at) % BLOCK_BYTES
        if left < _PIECE.size:
            at += left
            continue
        if at + _PIECE.size > length_max:
            return inside or at < length_max
        expected, length, kind = _PIECE.unpack_from(data, at)
        recyclable = _FULL + _RECYCLABLE <= kind <= _LAST + _RECYCLABLE
        header = 11 if recyclable else 7
        following = at + header + length
        if kind == 0 and left < 11:  # no room for the header of a recyclable piece: the rest of the block is zeros
            at += left
            continue
        if kind == 0 or header + length > left:
            return False
        if recyclable:
            if int.from_bytes(data[at + 7 : at + 11], "little") != log_number & 0xFFFFFFFF:
                return at + 11 > length_max
            kind -= _RECYCLABLE
        if following > length_max:
            return True
        if checksum(at + 6, following) != expected:
            return False
        if kind == _FULL:
            yield Record(data[at + header : following], begin + at, begin + following)
            inside, resume = False, False
        elif kind == _FIRST:
            pieces, start, inside, resume = [data[at + header : following]], at, True, False
        elif kind in (_MIDDLE, _LAST):
            if inside:
                pieces.append(data[at + header : following])
            elif not resume:
                return False  # the rest of what was torn
            if inside and kind == _LAST:
                inside = False
                yield Record(b"".join(pieces), begin + start, begin + following)
        elif kind == _COMPRESSION:
            raise CaptureRefused("This log of RocksDB is compressed, which capture cannot read: set wal_compression to kNoCompression.")
        elif kind not in _TIMESTAMP_SIZES and not kind & _IGNORABLE:
            raise CaptureRefused(f"This log of RocksDB has a record of the kind {kind}, which capture does not know.")
        at = following


def operations(batch: bytes) -> Iterator[Operation]:
    """Of one record of the log. Raises CaptureRefused at what is not known."""
    try:
        yield from _operations(batch)
    except (IndexError, struct.error):
        raise CaptureRefused("A batch of this log of RocksDB ends in the middle of an operation.") from None


def _operations(batch: bytes) -> Iterator[Operation]:
    sequence, count = BATCH_HEADER.unpack_from(batch)
    at, end, first, begin = BATCH_HEADER.size, len(batch), sequence, BATCH_HEADER.size
    log_data: tuple[bytes, ...] = ()
    while at < end:
        kind, family, key, value = batch[at], 0, b"", b""
        at += 1
        if kind in _OF_A_FAMILY:
            kind = _OF_A_FAMILY[kind]
            family, at = varint(batch, at)
        if kind in _HAS_KEY:
            length = batch[at]
            at += 1
            if length > 127:
                length, at = varint(batch, at - 1)
            key = batch[at : at + length]
            at += length
            if kind in _HAS_VALUE:
                length = batch[at]
                at += 1
                if length > 127:
                    length, at = varint(batch, at - 1)
                value = batch[at : at + length]
                at += length
            yield sequence, kind, family, key, value, log_data, at - begin
            sequence, begin, log_data = sequence + 1, at, ()
        elif kind == LOG_DATA:
            length, at = varint(batch, at)
            log_data = (*log_data, batch[at : at + length])
            at += length
        elif kind != NOOP:
            raise CaptureRefused(
                f"The batch {first} of this log of RocksDB has an entry of the kind {kind}, which capture cannot read "
                "(9 to 12, 18, 19 and 21 are of two-phase commits, 16 and 17 of the old BlobDB)."
            )
    if sequence != first + count or at != end:
        raise CaptureRefused(f"The batch {first} of this log of RocksDB should have {count} operations, and has {sequence - first}.")


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def checksum_of(data: bytes) -> Callable[[int, int], int]:
    """What computes the masked CRC32C of a part of the data, from one place to another."""
    extend = _library_extend()
    if extend is None:

        def slow(begin: int, end: int) -> int:
            value = crc32c(data[begin:end])
            return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF

        return slow
    address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0

    def quick(begin: int, end: int) -> int:
        value: int = extend(0, address + begin, end - begin)
        return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    return quick


@functools.cache
def _library_extend() -> Callable[[int, int, int], int] | None:
    """rocksdb::crc32c::Extend, which is in no header of C, but has had this name since the beginning."""
    path = library_path()
    if path is None:
        return None
    try:
        # PyDLL keeps the interpreter's lock: to let it go and take it again takes longer than the checksum of a small record.
        function = ctypes.PyDLL(path)["_ZN7rocksdb6crc32c6ExtendEjPKcm"]
    except (OSError, AttributeError):
        return None
    function.restype, function.argtypes = ctypes.c_uint32, [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t]
    return function


@functools.cache
def _table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


def crc32c(data: bytes) -> int:
    table, value = _table(), 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF
