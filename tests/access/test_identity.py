"""Users that a credential may name."""

from __future__ import annotations

import pytest

from roskva.access import Identity
from roskva.access.identity import check_user
from roskva.errors import CredentialRefused


@pytest.mark.parametrize("user", ["a", "alice@shop.example", "auth0|5f7c8", "Þjálfi the runner", "x" * 256])
def test_a_user_has_1_to_256_printable_characters(user: str) -> None:
    assert check_user(user) == user


@pytest.mark.parametrize("user", ["", "x" * 257, None, 7, True, ["alice"], "a\nb", "a\x00", "\ud800"])
def test_anything_else_is_refused(user: object) -> None:
    with pytest.raises(CredentialRefused):
        check_user(user)


def test_an_identity_does_not_change() -> None:
    identity = Identity(user="alice", claims={}, issued_s=0.0, until_s=1.0)
    with pytest.raises(AttributeError):
        identity.user = "mallory"  # type: ignore[misc]
