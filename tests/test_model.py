"""Names, versions, keys and partitions: what every room relies on."""

from __future__ import annotations

import base64
from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roskva.errors import InvalidApplication, InvalidDevice, InvalidName, InvalidVersion
from roskva.model import (
    BASE64_MARK,
    NAME_BYTES_MAX,
    VERSION_MAX,
    ClientId,
    check_application,
    check_device,
    client_partition,
    epoch_of,
    logged,
    name_from_text,
    name_of,
    name_to_text,
    object_key,
    partition_of,
    rendezvous,
    seqno_of,
    session_of,
    split_object_key,
    version_from_number,
    version_from_text,
)

names = st.binary(min_size=1, max_size=NAME_BYTES_MAX)
applications = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True)
epochs = st.integers(0, 2**32 - 1)


@given(names)
def test_every_name_survives_its_text_form(name: bytes) -> None:
    assert name_from_text(name_to_text(name)) == name


@given(st.text(min_size=1, max_size=32))
def test_printable_text_is_its_own_form_and_nothing_else_is(text: str) -> None:
    name = text.encode("utf-8", "ignore")
    if not 1 <= len(name) <= NAME_BYTES_MAX:
        return
    plain = name.decode().isprintable() and not name.startswith(BASE64_MARK.encode())
    assert (name_to_text(name) == name.decode()) == plain
    assert name_to_text(name).startswith(BASE64_MARK) != plain


@given(names, names)
def test_different_names_have_different_forms(one: bytes, other: bytes) -> None:
    assert (name_to_text(one) == name_to_text(other)) == (one == other)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"hello", "hello"),
        ("Röskva ☕".encode(), "Röskva ☕"),
        (b"a b/c?d=e&f", "a b/c?d=e&f"),
        (b"\xff\xfe", "base64:__4"),
        (b"line\n", "base64:bGluZQo"),
        (b"base64:x", "base64:YmFzZTY0Ong"),
        ("\u200d".encode(), "base64:4oCN"),
        (b"\x00", "base64:AA"),
    ],
)
def test_the_form_of_a_name_is_the_documented_one(name: bytes, text: str) -> None:
    assert name_to_text(name) == text
    assert name_from_text(text) == name


def test_a_marked_form_of_plain_text_names_the_same_object() -> None:
    marked = BASE64_MARK + base64.urlsafe_b64encode(b"hello").rstrip(b"=").decode()
    assert name_from_text(marked) == b"hello"
    assert name_to_text(name_from_text(marked)) == "hello"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "0 bytes"),
        ("base64:", "0 bytes"),
        ("x" * 129, "129 bytes"),
        ("ü" * 65, "130 bytes"),
        ("base64:" + "A" * 172, "129 bytes"),
        ("base64:a+b/", "not base64url"),
        ("base64:YQ==", "not base64url"),
        ("base64:YWJj\n", "not base64url"),
        ("base64:A", "not base64url"),
        ("base64:ü", "not base64url"),
        ("\ud800", "surrogate"),
    ],
)
def test_a_bad_name_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidName, match=reason):
        name_from_text(text)


def test_the_longest_name_fits_and_its_form_stays_short() -> None:
    assert name_from_text("x" * 128) == b"x" * 128
    assert len(name_to_text(b"\xff" * 128)) == len(BASE64_MARK) + 171


@given(st.integers(0, VERSION_MAX))
def test_every_version_is_read_from_digits_and_from_a_number(version: int) -> None:
    assert version_from_text(str(version)) == version
    assert version_from_number(version) == version
    assert version_from_number(str(version)) == version


@pytest.mark.parametrize("text", ["", " 1", "1 ", "+1", "-1", "1.0", "1e3", "0x1", "²", "٣", "1_000", str(VERSION_MAX + 1), "9" * 20])
def test_what_is_not_digits_in_range_is_no_version(text: str) -> None:
    with pytest.raises(InvalidVersion):
        version_from_text(text)


@pytest.mark.parametrize("value", [True, False, None, 1.0, -1, VERSION_MAX + 1, [], {}, b"1"])
def test_what_is_not_an_integer_in_range_is_no_version(value: object) -> None:
    with pytest.raises(InvalidVersion):
        version_from_number(value)


@given(applications, epochs, names)
def test_an_object_key_is_read_back_whatever_bytes_the_name_holds(application: str, epoch: int, name: bytes) -> None:
    key = object_key(application, epoch, name)
    assert split_object_key(key) == (application, epoch, name)
    assert name_of(key) == name
    assert epoch_of(key) == epoch


@given(st.tuples(applications, epochs, names), st.tuples(applications, epochs, names))
def test_different_objects_have_different_keys(one: tuple[str, int, bytes], other: tuple[str, int, bytes]) -> None:
    assert (object_key(*one) == object_key(*other)) == (one == other)


@pytest.mark.parametrize("application", ["", "Demo", "-demo", "de mo", "d" * 65, "démo", "demo\n", "a/b"])
def test_bad_applications_are_refused(application: str) -> None:
    with pytest.raises(InvalidApplication):
        check_application(application)


@pytest.mark.parametrize("device", ["", "x" * 129, "ü" * 65, "\udfff"])
def test_bad_devices_are_refused(device: str) -> None:
    with pytest.raises(InvalidDevice):
        check_device(device)


def test_good_applications_and_devices_are_answered_as_they_came() -> None:
    assert check_application("a.b_c-9") == "a.b_c-9"
    assert check_device("d" * 128) == "d" * 128


@given(st.integers(0, 2**31 - 2), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_a_later_session_outranks_every_seqno_before_it(session: int, counter: int, later_counter: int) -> None:
    assert session_of(seqno_of(session, counter)) == session
    assert seqno_of(session, counter) < seqno_of(session + 1, later_counter)


def test_partitions_are_pinned_and_in_range() -> None:
    """A change of the hash would move every row of an existing deployment."""
    assert [partition_of(key, 4) for key in (b"a", b"b", b"c", b"demo\x00\x00\x00\x00\x00hello")] == [3, 1, 3, 2]
    assert client_partition(ClientId("a"), 4) == partition_of(b"a", 4)
    counts = Counter(partition_of(str(number).encode(), 4) for number in range(4000))
    assert set(counts) == {0, 1, 2, 3}
    assert max(counts.values()) < 1.2 * min(counts.values())


def test_rendezvous_is_balanced() -> None:
    members = [f"member-{number}" for number in range(5)]
    counts = Counter(rendezvous(partition, members) for partition in range(5000))
    assert set(counts) == set(members)
    assert max(counts.values()) < 1.2 * 1000
    assert min(counts.values()) > 0.8 * 1000


@given(st.sets(st.text("abcdef0123456789", min_size=1, max_size=8), min_size=2, max_size=6), st.data())
def test_a_member_that_leaves_moves_only_its_own_partitions(members: set[str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(members)))
    for partition in range(32):
        before, after = rendezvous(partition, members), rendezvous(partition, members - {gone})
        assert after == before if before != gone else after != gone


@given(st.permutations(["a", "b", "c", "d"]))
def test_rendezvous_does_not_depend_on_the_order_of_members(members: list[str]) -> None:
    assert [rendezvous(p, members) for p in range(16)] == [rendezvous(p, sorted(members)) for p in range(16)]


def test_nobody_owns_anything_while_nobody_lives() -> None:
    assert rendezvous(0, []) is None


class _Logged(NamedTuple):
    private_names: bool


def test_logs_name_objects_only_where_they_may() -> None:
    applications = {"open": _Logged(False), "clinic": _Logged(True)}
    assert logged(object_key("open", 3, b"hello"), applications) == "open/hello"
    hidden = [logged(object_key(application, 0, b"hello"), applications) for application in ("clinic", "added-later")]
    assert hidden == ["clinic/#2cf24dba5fb0", "added-later/#2cf24dba5fb0"]
    assert logged(object_key("clinic", 7, b"hello"), applications) == hidden[0]  # the same in every entry
