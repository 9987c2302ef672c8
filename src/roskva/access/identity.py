"""Who a client's user is, as far as its credential says. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from roskva.errors import CredentialRefused

USER_CHARACTERS_MAX: Final = 256


class Identity(msgspec.Struct, frozen=True):
    user: str
    claims: dict[str, Any]  # what else the credential says, for patterns
    issued_s: float  # when, in seconds since 1970; 0.0 if that is not known
    until_s: float  # when it ends, in seconds since 1970; math.inf: never


def check_user(user: object) -> str:
    """A user as a credential names it. Raises CredentialRefused if it cannot be one.

    What cannot be printed cannot be revoked either, since `revoked_users` is a list of lines, and would be a trap in logs.
    """
    if not isinstance(user, str) or not 1 <= len(user) <= USER_CHARACTERS_MAX:
        raise CredentialRefused(f"The credential does not name its user with 1 to {USER_CHARACTERS_MAX} characters.")
    if not user.isprintable():
        raise CredentialRefused("The credential's user has characters that cannot be printed.")
    return user
