"""Users' credentials that are JSON Web Tokens (RFC 7519), with the advice of RFC 8725: one algorithm, which the settings name.

PyJWT verifies the signature, and knows no algorithm but that one; what the claims must be is said here, against the clock of the caller.
No error holds anything of the credential: errors are logged, and credentials are secrets.
"""

from __future__ import annotations

import binascii
import math
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable
from typing import Any, Final, NoReturn

import jwt
import msgspec

from roskva.access.identity import Identity, check_user
from roskva.access.jwt_keys import Key, KeySource, open_keys
from roskva.config import ApplicationSettings
from roskva.errors import CredentialExpired, CredentialRefused

CREDENTIAL_BYTES_MAX: Final = 8 << 10

_KEYS_DEPEND_ON: Final = ("jwt_algorithm", "jwt_keys", "webhook_timeout_s")


class JwtVerifier:
    """Raises InvalidSetting if there are no keys that could verify anything."""

    def __init__(self, settings: ApplicationSettings, clock: Callable[[], float] = time.time, before: JwtVerifier | None = None) -> None:
        self.settings = settings
        self._clock = clock
        self._algorithm = settings.jwt_algorithm
        self._jws = jwt.PyJWS(algorithms=[self._algorithm], options={"verify_signature": True, "enforce_minimum_key_length": True})
        # Other settings that changed are no reason to fetch the keys again, and to be without any if that fails.
        self.keys: KeySource = before.keys if before is not None and self.has_keys_of(before) else open_keys(settings, clock)

    def has_keys_of(self, other: JwtVerifier) -> bool:
        return all(getattr(self.settings, name) == getattr(other.settings, name) for name in _KEYS_DEPEND_ON)

    async def identify(self, credential: str) -> Identity:
        """Raises CredentialExpired, CredentialRefused, or AuthorizationUnavailable if there are no keys at the moment."""
        if len(credential) > CREDENTIAL_BYTES_MAX or not credential.isascii():
            _refuse(f"is not ASCII, or has more than {CREDENTIAL_BYTES_MAX:,} bytes")
        candidates = await self.keys.candidates(self._kid(credential))
        if not candidates:
            _refuse("is signed with a key that is not known")
        for candidate in candidates:
            payload = self._verified(credential, candidate)
            if payload is not None:
                return self._identity(_claims(payload))
        raise CredentialRefused("The credential has a signature that does not fit.")

    async def close(self) -> None:
        await self.keys.close()

    def _kid(self, credential: str) -> str | None:
        """What its header says about the key. It only chooses among keys; whoever cannot be verified at all makes nobody fetch them."""
        header_text, dot, _ = credential.partition(".")
        try:
            header = msgspec.json.decode(urlsafe_b64decode(header_text + "=" * (-len(header_text) % 4)))
        except (msgspec.DecodeError, binascii.Error, ValueError, RecursionError):
            header = None
        if not dot or not isinstance(header, dict):
            _refuse("is not a JSON Web Token")
        if header.get("alg") != self._algorithm:
            _refuse(f"is not signed with {self._algorithm}")
        kid = header.get("kid")
        if kid is not None and not isinstance(kid, str):
            _refuse("names its key with something that is not text")
        return kid

    def _verified(self, credential: str, candidate: Key) -> bytes | None:
        """What was signed. None: it was not signed with this key."""
        try:
            decoded = self._jws.decode_complete(credential, key=candidate.key, algorithms=[self._algorithm])
        except jwt.InvalidSignatureError:
            return None
        except (jwt.PyJWTError, ValueError, TypeError):
            _refuse("is not a JSON Web Token of the usual form")
        payload: bytes = decoded["payload"]
        return payload

    def _identity(self, claims: dict[str, Any]) -> Identity:
        settings, now_s = self.settings, self._clock()
        expires_s = _time(claims, "exp")
        issued_s = _time(claims, "iat")
        begins_s = _time(claims, "nbf")
        if expires_s is None:
            _refuse("does not say when it expires (exp)")
        if now_s >= expires_s + settings.jwt_leeway_s:
            raise CredentialExpired
        if begins_s is not None and begins_s > now_s + settings.jwt_leeway_s:
            _refuse("is not valid yet (nbf)")
        # One of the future would outlast its revocation (Credentials.is_revoked reckons with the leeway).
        if issued_s is not None and issued_s > now_s + settings.jwt_leeway_s:
            _refuse("was issued in the future (iat)")
        if settings.jwt_issuer and claims.get("iss") != settings.jwt_issuer:
            _refuse("is of another issuer (iss)")
        if not _is_for(claims.get("aud"), settings.jwt_audience):
            _refuse("is for somebody else (aud)")
        return Identity(
            user=check_user(claims.get("sub")),
            claims=claims,
            issued_s=issued_s or 0.0,
            until_s=min(expires_s + settings.jwt_leeway_s, now_s + settings.credential_s_max),
        )


def _refuse(reason: str) -> NoReturn:
    raise CredentialRefused(f"The credential {reason}.")


def _claims(payload: bytes) -> dict[str, Any]:
    try:
        claims = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        claims = None
    if not isinstance(claims, dict):
        _refuse("does not hold claims")
    return claims


def _time(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 2**53 or not math.isfinite(value):
        _refuse(f"has a time that is none ({name})")
    return float(value)


def _is_for(audience: object, wanted: str) -> bool:
    """A list holds all for whom it is. One that is for anybody else must not be used here, even if nothing is wanted."""
    if audience is None:
        return not wanted
    if isinstance(audience, list):
        return bool(wanted) and wanted in audience
    return bool(wanted) and audience == wanted
