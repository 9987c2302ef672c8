"""Summaries: what two sides compare instead of their registrations (Thialfi 4.1.3)."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from roskva.protocol.messages import Summary
from roskva.protocol.summaries import SetDigest, bucket_of, bucket_summaries, differing_buckets, hash_of

names = st.binary(min_size=1, max_size=8)
name_sets = st.sets(names, max_size=30)


def test_the_worked_example_of_the_documentation_holds() -> None:
    """docs/protocol.md shows these figures: a client written from it must arrive at them."""
    assert SetDigest().summary() == Summary(count=0, digest="0" * 32)
    assert SetDigest([b"hello"]).summary() == Summary(count=1, digest="2cf24dba5fb0a30e26e83b2ac5b9e29e")
    assert SetDigest([b"world"]).summary() == Summary(count=1, digest="486ea46224d1bb4fb680f34f7c9ad96a")
    assert SetDigest([b"hello", b"world"]).summary() == Summary(count=2, digest="7560f21c84825e5ddd692e7a4254bc08")
    assert (bucket_of(b"hello"), bucket_of(b"world")) == (0x2C, 0x48)
    assert SetDigest([b"carry-1", b"carry-2"]).total == (hash_of(b"carry-1") + hash_of(b"carry-2")) % 2**128


@given(st.lists(names, unique=True, max_size=30), st.randoms())
def test_the_order_of_changes_does_not_matter(added: list[bytes], shuffled: object) -> None:
    other = list(added)
    shuffled.shuffle(other)  # type: ignore[attr-defined]
    assert SetDigest(added).summary() == SetDigest(other).summary()


@given(name_sets, name_sets)
def test_step_by_step_equals_from_scratch(before: set[bytes], after: set[bytes]) -> None:
    digest = SetDigest(before)
    for name in before - after:
        digest.remove(name)
    for name in after - before:
        digest.add(name)
    assert digest.summary() == SetDigest(after).summary()
    assert digest.matches(SetDigest(after).summary())


@given(name_sets, name_sets)
def test_different_sets_have_different_summaries(one: set[bytes], other: set[bytes]) -> None:
    assert (SetDigest(one).summary() == SetDigest(other).summary()) == (one == other)
    assert SetDigest(one).matches(SetDigest(other).summary()) == (one == other)


@given(names)
def test_a_hash_is_the_first_half_of_sha256_and_its_first_byte_is_the_bucket(name: bytes) -> None:
    full = hashlib.sha256(name).hexdigest()
    assert f"{hash_of(name):032x}" == full[:32]
    assert f"{bucket_of(name):02x}" == full[:2]


def test_the_sum_wraps_at_128_bits() -> None:
    names_over = [str(number).encode() for number in range(1000)]
    digest = SetDigest(names_over)
    assert digest.total == sum(map(hash_of, names_over)) % 2**128
    assert len(digest.summary().digest) == 32


@given(name_sets)
def test_the_buckets_add_up_to_the_whole_and_none_is_empty(members: set[bytes]) -> None:
    buckets = bucket_summaries(members)
    assert [one.bucket for one in buckets] == sorted({bucket_of(name) for name in members})
    assert sum(one.count for one in buckets) == len(members)
    assert sum(int(one.digest, 16) for one in buckets) % 2**128 == SetDigest(members).total


@given(name_sets, name_sets)
def test_exactly_the_buckets_with_a_difference_are_named(ours: set[bytes], theirs: set[bytes]) -> None:
    differing = differing_buckets(bucket_summaries(ours), bucket_summaries(theirs))
    assert differing == sorted({bucket_of(name) for name in ours ^ theirs})
    assert differing == differing_buckets(bucket_summaries(theirs), bucket_summaries(ours))
