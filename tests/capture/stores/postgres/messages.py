"""Messages of pgoutput, as PostgreSQL's manual describes them ("Logical Replication Message Formats")."""

from __future__ import annotations

from struct import pack

UNCHANGED = object()
EPOCH_US = 946_684_800_000_000


def begin(lsn: int, committed_us: int = EPOCH_US) -> bytes:
    return b"B" + pack(">QqI", lsn, committed_us - EPOCH_US, 700)


def commit(lsn: int, end: int) -> bytes:
    return b"C" + pack(">BQQq", 0, lsn, end, 0)


def relation(
    number: int, name: str, columns: dict[str, int], key: tuple[str, ...] = (), identity: bytes = b"d", schema: str = "public"
) -> bytes:
    described = b"".join(bytes([name in key]) + name.encode() + b"\0" + pack(">Ii", kind, -1) for name, kind in columns.items())
    return b"R" + pack(">I", number) + schema.encode() + b"\0" + name.encode() + b"\0" + identity + pack(">H", len(columns)) + described


def row(*values: object) -> bytes:
    parts = [pack(">H", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        else:
            raw = value if isinstance(value, bytes) else str(value).encode()
            parts.append(b"t" + pack(">I", len(raw)) + raw)
    return b"".join(parts)


def insert(number: int, *values: object) -> bytes:
    return b"I" + pack(">I", number) + b"N" + row(*values)


def update(number: int, new: bytes, old: bytes = b"", kind: bytes = b"K") -> bytes:
    return b"U" + pack(">I", number) + (kind + old if old else b"") + b"N" + new


def delete(number: int, old: bytes, kind: bytes = b"K") -> bytes:
    return b"D" + pack(">I", number) + kind + old


def truncate(*numbers: int) -> bytes:
    return b"T" + pack(">IB", len(numbers), 0) + b"".join(pack(">I", number) for number in numbers)


def message(lsn: int, prefix: str, content: bytes, transactional: bool = True) -> bytes:
    return b"M" + pack(">BQ", transactional, lsn) + prefix.encode() + b"\0" + pack(">I", len(content)) + content
