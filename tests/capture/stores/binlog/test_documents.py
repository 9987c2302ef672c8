"""JSON documents of MySQL from bytes that its server wrote, and from bytes that none should write."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roskva.capture.stores.binlog.documents import number_text, text_of
from roskva.capture.stores.binlog.values import decimal

# Written by MySQL 8.0.33: {"a": [1, 2.5, true, null, "x"]}
WRITTEN = bytes.fromhex("00010029000b000100020c006105001d000501000b13000401000400000c1b0000000000000004400178")


def text(document: bytes) -> str:
    return text_of(document, lambda precision, scale, packed: str(decimal(precision, scale).read(packed, 0)[0]))


def nested(depth: int) -> bytes:
    """Arrays of one array each, in the form for large ones."""
    one = (1).to_bytes(4, "little")
    document = one + (13).to_bytes(4, "little") + b"\x04\x01\0\0\0"  # of one true
    for _ in range(depth - 1):
        document = one + (13 + len(document)).to_bytes(4, "little") + b"\x03" + (13).to_bytes(4, "little") + document
    return b"\x03" + document


def test_what_a_server_wrote_is_read() -> None:
    assert text(WRITTEN) == '{"a": [1, 2.5, true, null, "x"]}'
    assert text(b"") == "null"
    assert text(b'\x0c\x07"\\\n\x01\xc3\xa9/') == '"\\"\\\\\\n\\u0001é/"'
    assert text(bytes.fromhex("0f f6 05 04 03 81 01 f4")) == "1.500"
    assert text(bytes.fromhex("0f fc 02 00 ff")) == '"base64:type252:AP8="'


def test_a_document_may_be_as_deep_as_the_server_makes_them_and_no_deeper() -> None:
    assert text(nested(100)) == "[" * 100 + "true" + "]" * 100
    with pytest.raises(ValueError, match="deeper than 100"):
        text(nested(101))


def test_bytes_that_stand_for_several_values_are_no_document() -> None:
    """A few bytes would become any number of them."""
    entries = 60
    shared = (4 + entries * 3).to_bytes(2, "little")
    head = entries.to_bytes(2, "little") + (4 + entries * 3 + 40).to_bytes(2, "little")
    document = b"\x02" + head + (b"\x0c" + shared) * entries + b"\x27" + b"x" * 39
    with pytest.raises(ValueError, match="one place for several"):
        text(document)


def test_any_bytes_are_a_document_or_a_named_error() -> None:
    seeded = random.Random(3)
    for place in range(len(WRITTEN)):
        for octet in (0, 1, 0x0C, 0x7F, 0xFF, seeded.randrange(256)):
            damaged = bytearray(WRITTEN)
            damaged[place] = octet
            for document in (bytes(damaged), WRITTEN[:place]):
                try:
                    assert isinstance(text(document), str)
                except ValueError:
                    continue


@given(st.binary(max_size=200))
def test_no_bytes_are_anything_else(document: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert len(text(document)) < 8 * len(document) + 400


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_written_so_that_it_is_read_as_the_same(number: float) -> None:
    shown = number_text(number)
    assert float(shown) == number
    assert "." in shown or "e" in shown  # by which JSON tells it from a whole number
