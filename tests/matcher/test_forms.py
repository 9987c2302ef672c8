"""The Bridge's rules: where an application's own form carries what Roskva needs, and what is malformed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roskva.matcher.forms import SAMPLED, At, Fields, Form, Malformed, Stamp, check, extract, picked
from roskva.model import Update, object_key

STANDARD = Form()
OWN = Form("doc.id", "doc.rev.number", "by")


def test_the_standard_form_is_read() -> None:
    value = b'{"object":"hello","version":7,"source":"phone","more":[1]}'
    assert extract(value, STANDARD) == Fields("hello", "7", "phone")


def test_an_own_form_is_read_along_its_paths() -> None:
    value = b'{"doc":{"id":"hello","rev":{"number":"7"}},"by":"phone"}'
    assert extract(value, OWN) == Fields("hello", "7", "phone")


@pytest.mark.parametrize("value", [b"", b"{", b"\xff", b"not json", b"[" * 5_000])
def test_what_is_not_json_is_malformed(value: bytes) -> None:
    found = extract(value, STANDARD)
    assert isinstance(found, Malformed)
    assert found.code == "malformed-message"


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        ({}, Fields(None, None, None)),
        ([], Fields(None, None, None)),
        ("text", Fields(None, None, None)),
        ({"object": None, "version": None}, Fields(None, None, None)),
        ({"object": True, "version": False}, Fields(None, None, None)),
        ({"object": 7, "version": 1.5}, Fields("7", "1.5", None)),
        ({"object": {"a": 1}, "version": [1]}, Fields('{"a":1}', "[1]", None)),
    ],
)
def test_what_the_paths_lead_to_becomes_text(value: object, fields: Fields) -> None:
    assert extract(json.dumps(value).encode(), STANDARD) == fields


def test_a_path_through_something_that_is_no_object_leads_nowhere() -> None:
    assert extract(b'{"doc":"hello","by":"phone"}', OWN) == Fields(None, None, "phone")


@given(st.binary(max_size=100))
def test_no_record_is_poison(value: bytes) -> None:
    """Trap 20: one bad record must not end the query, which would restart and meet it again, for ever."""
    fields = extract(value, OWN)
    if isinstance(fields, Fields):
        assert isinstance(check("demo", 0, fields), Update | Malformed)


@given(st.none() | st.text(max_size=150), st.none() | st.text(max_size=30), st.none() | st.text(max_size=150))
def test_any_fields_are_either_an_update_or_malformed_with_a_reason(name: str | None, version: str | None, source: str | None) -> None:
    found = check("demo", 3, Fields(name, version, source))
    if isinstance(found, Malformed):
        assert found.code in {"invalid-name", "invalid-version", "invalid-device"}
        assert found.reason
    else:
        assert found.version == int(version or "")
        assert found.source == (source or "")


def test_fields_in_order_are_an_update_of_the_stamped_epoch() -> None:
    assert check("demo", 2, Fields("hello", "7", "phone")) == Update(object_key("demo", 2, b"hello"), 7, "phone")
    assert check("demo", 2, Fields("base64:_w", "0", None), again=True) == Update(object_key("demo", 2, b"\xff"), 0, "", True)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        (Fields(None, "7", None), "invalid-name"),
        (Fields("", "7", None), "invalid-name"),
        (Fields("x" * 129, "7", None), "invalid-name"),
        (Fields("hello", None, None), "invalid-version"),
        (Fields("hello", "-1", None), "invalid-version"),
        (Fields("hello", "1.5", None), "invalid-version"),
        (Fields("hello", str(2**63), None), "invalid-version"),
        (Fields("hello", "7", "x" * 129), "invalid-device"),
    ],
)
def test_a_malformed_update_names_what_is_wrong(fields: Fields, code: str) -> None:
    found = check("demo", 0, fields)
    assert isinstance(found, Malformed)
    assert found.code == code


def test_numbers_beyond_64_bits_are_no_versions() -> None:
    for number in (str(2**63), str(2**64), "9" * 40, "1e30"):
        fields = extract(b'{"object":"hello","version":%s}' % number.encode(), STANDARD)
        assert isinstance(fields, Malformed) or isinstance(check("demo", 0, fields), Malformed)


@given(st.sampled_from(["demo", "a.b-c"]), st.none() | st.integers(0, 2**32 - 1), st.booleans())
def test_the_stamp_of_a_record_reads_back(application: str, epoch: int | None, again: bool) -> None:
    stamp = Stamp(application, epoch, again)
    assert Stamp.decode(stamp.encode()) == stamp
    for form in (Form(), Form("doc.id", "rev", "form"), Form("again", "standard", "1")):
        accepted = Stamp(application, epoch, form=form)
        assert Stamp.decode(accepted.encode()) == accepted


@given(st.none() | st.integers(0, 9), st.sampled_from([None, Form(), Form("at", "at", "at"), Form("doc.id", "rev", "s")]), st.booleans())
def test_the_times_of_a_sampled_record_read_back_and_are_passed_over_by_who_does_not_know_them(
    epoch: int | None, form: Form | None, again: bool
) -> None:
    plain = Stamp("demo", epoch, again=again, since=3 if again else 0, form=None if again else form)
    sampled = plain._replace(at=At(5, 4))
    assert Stamp.decode(sampled.encode()) == sampled
    assert SAMPLED in sampled.encode()
    assert sampled.encode().startswith(plain.encode()), "what was there before is where it was"
    assert Stamp.decode(picked(sampled.encode(), 6, 7)) == plain._replace(at=At(5, 4, 6, 7))
    for unreadable in (b" at", b" at x y", b" at 5 -1", b" at 0 4", b" at 5 " + b"9" * 5_000, b" later words"):
        assert Stamp.decode((sampled.encode().partition(b" at 5 4")[0]) + unreadable).at is None
