"""The wire form: what goes in comes out, whatever it is; what is damaged is refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roskva.capture import rows, wire
from roskva.capture.positions import Position
from roskva.capture.rows import Decoding, Schemas
from roskva.capture.updates import Change, Operation, Value
from roskva.errors import CaptureRefused, MalformedMessage, MessageTooLarge

values: st.SearchStrategy[Value] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=20)
    | st.binary(max_size=20)
)
names = st.text(st.characters(codec="utf-8"), max_size=8)
columns = st.dictionaries(names, values, max_size=5)
changes = st.builds(
    Change,
    st.builds(Position, st.just(3), st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)),
    st.integers(0, 2**62),
    st.sampled_from(Operation),
    names,
    names,
    columns,
    columns,
    st.none() | columns,
    st.lists(names, max_size=3).map(tuple),
    st.none() | columns,
    st.just(0),  # the size in the log is not sent
)


def through(schemas: Schemas, decoding: Decoding, sent: list[Change], squeeze: bool = False) -> list[Change]:
    encoded = [schemas.encoded(change) for change in sent]
    for number in {row.schema for row in encoded} - {0}:
        (body,) = wire.Framing(2**20).feed(wire.framed(schemas.numbered(number)))
        learned = wire.to_subscriber(body)
        assert isinstance(learned, wire.Schema)
        decoding.learn(learned)
    (body,) = wire.Framing(2**24).feed(wire.updates(7, 3, [row.data for row in encoded], squeeze))
    frame = wire.to_subscriber(body)
    assert isinstance(frame, wire.Compressed if squeeze else wire.Updates)
    assert wire.cost_of(frame) == sum(len(row.data) for row in encoded)
    plain = wire.inflated(frame) if isinstance(frame, wire.Compressed) else frame
    assert plain.flow == 7
    return [update.change for update in decoding.updates(5, plain.history, plain.rows) if update.shard == 5]


def exactly(change: Change) -> tuple[object, ...]:
    """So that 1, 1.0 and True differ."""
    return tuple(repr(dict(part)) if isinstance(part, dict) else part for part in change)


@settings(max_examples=200, deadline=None)
@given(st.lists(changes, max_size=6), st.booleans())
def test_every_change_comes_back_as_it_was(sent: list[Change], squeeze: bool) -> None:
    assert [exactly(change) for change in through(Schemas(), Decoding(), sent, squeeze)] == [exactly(change) for change in sent]


def a_change(number: int, **named: Value) -> Change:
    key: Value = named.get("id", number)
    return Change(Position(3, number, 1), 5, Operation.UPDATE, "db", "t", {"id": key}, {"id": key, **named})


def test_the_names_of_columns_are_sent_once_and_a_key_among_them_not_twice() -> None:
    schemas = Schemas()
    first, second = schemas.encoded(a_change(1, text="x" * 50)), schemas.encoded(a_change(2, text="y" * 50))
    assert first.schema == second.schema == len(schemas) == 1
    assert schemas.numbered(1).key_in_columns
    assert len(first.data) < 75
    assert b"text" not in first.data


def test_a_key_that_is_equal_but_not_the_same_keeps_its_kind() -> None:
    change = Change(Position(3, 1, 1), 5, Operation.UPDATE, "db", "t", {"id": 1}, {"id": True})
    assert exactly(through(Schemas(), Decoding(), [change])[0]) == exactly(change)


def test_tables_without_a_fixed_form_do_not_use_up_the_schemas() -> None:
    schemas, decoding = Schemas(), Decoding()
    sent = [a_change(number, **{f"column{number}": number}) for number in range(rows.SHAPES_MAX + 50)]
    assert [exactly(change) for change in through(schemas, decoding, sent)] == [exactly(change) for change in sent]
    assert len(schemas) == rows.SHAPES_MAX


def test_what_msgpack_cannot_hold_is_sent_as_bytes_or_text_and_not_dropped() -> None:
    change = a_change(1, torn="caf\udce9", lone="\ud800", large=2**70)
    (came,) = through(Schemas(), Decoding(), [change])
    assert came.columns["torn"] == b"caf\xe9"
    assert came.columns["lone"] == b"\xed\xa0\x80"
    assert came.columns["large"] == str(2**70)


HALF, OTHER_HALF = "\ud800", "\ud801"


@pytest.mark.parametrize(
    ("place", "given_as", "comes_as"),
    [
        ("database", HALF, r"\ud800"),
        ("table", "caf\udce9", r"caf\udce9"),
        ("key", {HALF: 1}, {r"\ud800": 1}),
        ("columns", {"id": 1, HALF: 2, OTHER_HALF: 3}, {"id": 1, r"\ud800": 2, r"\ud801": 3}),
        ("columns", {HALF: HALF, "large": 2**70}, {r"\ud800": b"\xed\xa0\x80", "large": str(2**70)}),
        ("old_key", {HALF: 1}, {r"\ud800": 1}),
        ("unchanged", ("text", HALF), ("text", r"\ud800")),
        ("attached", {HALF: 1}, {r"\ud800": 1}),
    ],
)
def test_a_name_that_is_no_text_is_sent_with_backslashes_wherever_it_stands(place: str, given_as: Any, comes_as: Any) -> None:
    """One such name, in a message that any user of the database may write, would stop the publisher of all."""
    sent = [a_change(0, text="x"), a_change(1)._replace(**{place: given_as}), a_change(2, text="x")]
    came = through(Schemas(), Decoding(), sent)
    assert came == [sent[0], sent[1]._replace(**{place: comes_as}), sent[2]]


any_names = st.text(st.characters(), max_size=8)
any_columns = st.dictionaries(any_names, values | any_names | st.integers(), max_size=3)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.builds(
            Change,
            st.just(Position(3, 1, 1)),
            st.just(5),
            st.sampled_from(Operation),
            any_names,
            any_names,
            any_columns,
            any_columns,
            st.none() | any_columns,
            st.lists(any_names, max_size=2).map(tuple),
            st.none() | any_columns,
        ),
        max_size=4,
    )
)
def test_whatever_the_names_and_values_are_every_change_gets_through(sent: list[Change]) -> None:
    came = through(Schemas(), Decoding(), sent)
    assert [(change.position, change.operation) for change in came] == [(change.position, change.operation) for change in sent]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_frames_are_cut_wherever_the_network_cuts_them(size: int) -> None:
    sent: list[wire.AnyFrame] = [wire.Ping(1), wire.Open(1, 2, 3, Position(1, 2, 3), 4), wire.Bye("x" * 100)]
    data = b"".join(map(wire.framed, sent))
    framing = wire.Framing(1000)
    found = [wire.to_subscriber(body) for at in range(0, len(data), size) for body in framing.feed(data[at : at + size])]
    assert found == sent
    assert framing.held_bytes == 0


@pytest.mark.parametrize("position", [[0, 1, 2**64 - 1], [0, 2**63, 1], [2**63, 1, 1], [0, 1, -1], [0, -1, 1]])
def test_a_position_that_nobody_could_store_is_refused(position: list[int]) -> None:
    with pytest.raises(MalformedMessage):
        wire.to_publisher(msgspec.msgpack.encode([4, 1, position]))
    assert wire.to_publisher(msgspec.msgpack.encode([4, 1, [0, 2**63 - 1, 2**31 - 1]])) == wire.Acknowledge(1, Position(0, 2**63 - 1))


def test_a_frame_that_is_too_long_is_refused_before_it_is_held() -> None:
    framing = wire.Framing(100)
    with pytest.raises(MessageTooLarge):
        list(framing.feed((101).to_bytes(4, "big")))


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x93\x19\x01", msgspec.msgpack.encode([99, 1]), msgspec.msgpack.encode({"a": 1}), b"\x91" * 5000]
)
def test_what_is_no_frame_is_refused(body: bytes) -> None:
    for read in (wire.to_publisher, wire.to_subscriber, wire.greeting):
        with pytest.raises(MalformedMessage):
            read(body)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused_by_name_or_is_a_frame(noise: bytes) -> None:
    for read in (wire.to_publisher, wire.to_subscriber, wire.greeting):
        try:
            frame = read(noise)
        except MalformedMessage:
            continue
        assert isinstance(frame, msgspec.Struct)


@pytest.mark.parametrize(
    "row",
    [
        [1, 1, 1, 9, 1],
        [1, 1, 1, 1],
        [1, 1, 1, 1, 1, 1],
        [1],
        [],
        [1, 1, 1, 0, "x"],
        [1, 1, 1, 0, "no operation", "", "", {}, {}, None, [], None],
    ],
)
def test_a_row_that_does_not_fit_its_schema_is_refused(row: list[object]) -> None:
    schemas, decoding = Schemas(), Decoding()
    through(schemas, decoding, [a_change(1)])
    with pytest.raises(MalformedMessage):
        decoding.updates(0, 1, msgspec.msgpack.encode([row]))


def test_a_compressed_frame_cannot_grow_beyond_what_it_says() -> None:
    (body,) = wire.Framing(2**24).feed(wire.updates(7, 3, [b"\x90" * 1_000_000], True))
    frame = wire.to_subscriber(body)
    assert isinstance(frame, wire.Compressed)
    for length in (0, 10, frame.length - 1, frame.length + 1):
        with pytest.raises(MalformedMessage):
            wire.inflated(msgspec.structs.replace(frame, length=length))
    with pytest.raises(MessageTooLarge):
        wire.inflated(msgspec.structs.replace(frame, length=wire.FRAME_BYTES_MAX + 1))
    with pytest.raises(MalformedMessage):
        wire.inflated(msgspec.structs.replace(frame, deflated=b"not zlib"))


def test_a_proof_is_of_one_key_one_role_and_one_handshake() -> None:
    shown = wire.proof(b"key", wire.ROLE_SUBSCRIBER, b"hello", b"challenge")
    wire.verify(b"key", wire.ROLE_SUBSCRIBER, b"hello", b"challenge", shown)
    for key, role, hello, challenge in (
        (b"other", wire.ROLE_SUBSCRIBER, b"hello", b"challenge"),
        (b"key", wire.ROLE_PUBLISHER, b"hello", b"challenge"),
        (b"key", wire.ROLE_SUBSCRIBER, b"hello!", b"challenge"),
        (b"key", wire.ROLE_SUBSCRIBER, b"hello", b"another"),
    ):
        with pytest.raises(CaptureRefused):
            wire.verify(key, role, hello, challenge, shown)
