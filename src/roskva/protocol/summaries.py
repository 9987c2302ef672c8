"""Summaries of registrations: an incremental set digest, and its buckets (Thialfi 4.1.3, Registration Sync Protocol).

The digest of a set is the sum modulo 2^128 of the first 16 bytes of SHA-256 of each object's name: a change costs one addition,
whatever the size of the set. A bucket holds the names whose hash begins with that byte. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from roskva.protocol.messages import BUCKETS, BucketSummary, Summary

_MODULUS: Final = 1 << 128


def hash_of(name: bytes) -> int:
    return int.from_bytes(hashlib.sha256(name).digest()[:16], "big")


def bucket_of(name: bytes) -> int:
    return hashlib.sha256(name).digest()[0]


class SetDigest:
    """Count and digest of a set of names. The caller adds only what is absent and removes only what is present."""

    __slots__ = ("count", "total")

    def __init__(self, names: Iterable[bytes] = ()) -> None:
        self.count = 0
        self.total = 0
        for name in names:
            self.add(name)

    def add(self, name: bytes) -> None:
        self.count += 1
        self.total = (self.total + hash_of(name)) % _MODULUS

    def remove(self, name: bytes) -> None:
        self.count -= 1
        self.total = (self.total - hash_of(name)) % _MODULUS

    def summary(self) -> Summary:
        return Summary(count=self.count, digest=f"{self.total:032x}")

    def matches(self, summary: Summary) -> bool:
        return self.count == summary.count and f"{self.total:032x}" == summary.digest


def bucket_summaries(names: Iterable[bytes]) -> list[BucketSummary]:
    """The summaries of the buckets that are not empty, in order."""
    hashes: dict[int, list[int]] = {}
    for name in names:
        hashed = hash_of(name)
        hashes.setdefault(hashed >> 120, []).append(hashed)  # the first of its 16 bytes: one hash tells both
    return [
        BucketSummary(bucket=bucket, count=len(found), digest=f"{sum(found) % _MODULUS:032x}") for bucket, found in sorted(hashes.items())
    ]


def differing_buckets(ours: Iterable[BucketSummary], theirs: Iterable[BucketSummary]) -> list[int]:
    """The buckets in which two sets differ; a bucket that is named on one side only is empty on the other."""
    mine = {summary.bucket: (summary.count, summary.digest) for summary in ours}
    yours = {summary.bucket: (summary.count, summary.digest) for summary in theirs}
    return [bucket for bucket in range(BUCKETS) if mine.get(bucket) != yours.get(bucket)]
