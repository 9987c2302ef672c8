"""Events of a binary log, as tests make them."""

from __future__ import annotations

import zlib

from roskva.capture.stores.binlog.decoding import FORMAT, QUERY
from roskva.capture.stores.binlog.tables import Described

CODECS = {8: "cp1252", 33: "utf-8", 45: "utf-8", 63: None}


def nobody_describes(database: str, table: str) -> Described | None:
    raise AssertionError(f"{database}.{table} is described in the log")


def event(kind: int, body: bytes, stamp: int = 1_700_000_000, flags: int = 0, ends: int = 0) -> bytes:
    size, place = (19 + len(body) + 4).to_bytes(4, "little"), ends.to_bytes(4, "little") + flags.to_bytes(2, "little")
    bare = stamp.to_bytes(4, "little") + bytes([kind]) + bytes(4) + size + place + body
    return bare + zlib.crc32(bare).to_bytes(4, "little")


def statement(text: str, database: str = "d", collation: int = 45) -> bytes:
    status = b"\x00" + bytes(4) + b"\x01" + bytes(8) + b"\x06\x03std" + b"\x04" + collation.to_bytes(2, "little") + bytes(4)
    head = bytes(8) + bytes([len(database)]) + bytes(2) + len(status).to_bytes(2, "little")
    return event(QUERY, head + status + database.encode() + b"\0" + text.encode(CODECS[collation] or "ascii"))


FORMATTED = event(FORMAT, (4).to_bytes(2, "little") + b"10.11.19-MariaDB".ljust(50, b"\0") + bytes(4) + b"\x13" + bytes(40) + b"\x01")
