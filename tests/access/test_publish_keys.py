"""Keys with which backends publish."""

from __future__ import annotations

import hashlib
import re

import pytest

from roskva.access.publish_keys import hash_of, is_one_of, new_key
from roskva.config import HASH


def test_a_key_is_random_and_its_hash_is_what_the_settings_take() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    for key in keys:
        assert re.fullmatch(r"rk_[A-Za-z0-9_-]{43}", key)
        assert re.fullmatch(HASH["pattern"], hash_of(key))
        assert key not in hash_of(key)


def test_the_hash_is_plain_sha_256() -> None:
    assert hash_of("rk_x") == "sha256:" + hashlib.sha256(b"rk_x").hexdigest()


def test_any_of_several_keys_counts_and_no_other() -> None:
    old, new, other = new_key(), new_key(), new_key()
    hashes = (hash_of(old), hash_of(new))
    assert is_one_of(old, hashes)
    assert is_one_of(new, hashes)
    assert not is_one_of(other, hashes)
    assert not is_one_of(old, ())


@pytest.mark.parametrize("shown", ["", "rk_", " ", "Bearer", "ä" * 50, "\ud800", "x" * 100_000])
def test_nothing_that_is_shown_is_an_error(shown: str) -> None:
    assert not is_one_of(shown, (hash_of(new_key()),))


def test_the_hash_is_no_key() -> None:
    key = new_key()
    assert not is_one_of(hash_of(key), (hash_of(key),))


def test_the_last_of_many_is_found() -> None:
    key = new_key()
    assert is_one_of(key, [*(hash_of(new_key()) for _ in range(50)), hash_of(key)])
