"""The keys that JSON Web Tokens are verified with: from a file, or from the address at which whoever signs them publishes his (RFC 7517).

A key is taken only if it fits the one algorithm of the application: public keys for EdDSA and RS256, secrets for HS256. So no token can be
verified in a way that its key was not made for.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp
import jwt
import msgspec
import yarl
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import HMACAlgorithm, OKPAlgorithm, RSAAlgorithm

from roskva.access.files import WatchedFile
from roskva.access.webhooks import bounded_answer, new_session, shown_url
from roskva.config import ApplicationSettings
from roskva.errors import AuthorizationUnavailable, InvalidSetting

TRIED_MAX: Final = 4  # keys for one token: whoever forges one makes us try them all, at about half a millisecond each
SECRET_BYTES_MIN: Final = 32
RSA_BITS_MIN: Final = 2_048
REFETCH_S: Final = 30.0  # for a key that is not known, at most so often
FETCH_EVERY_S: Final = 3_600.0
KEPT_S: Final = 86_400.0  # without a fetch that succeeded
_RETRY_MIN_S: Final = 1.0

_KEY_TYPES: Final = {"EdDSA": "OKP", "RS256": "RSA", "HS256": "oct"}
_PEM: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
_PUBLIC_PEM: Final = (b"PUBLIC KEY", b"RSA PUBLIC KEY")

log = logging.getLogger(__name__)
Verifying = Ed25519PublicKey | RSAPublicKey | bytes


@dataclass(frozen=True, slots=True)
class Key:
    kid: str | None  # None: it may be meant by any token
    key: Verifying


class KeySource(Protocol):
    async def candidates(self, kid: str | None) -> Sequence[Key]:
        """The keys that a token which names this one may be signed with. Raises AuthorizationUnavailable if none are known at all."""

    async def close(self) -> None: ...


def open_keys(settings: ApplicationSettings, clock: Callable[[], float]) -> KeySource:
    """Raises InvalidSetting if the file cannot be used, or the address must not be."""
    if not settings.jwt_keys:
        raise InvalidSetting("authentication is jwt, and jwt_keys does not say what the tokens are verified with.")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", settings.jwt_keys):
        if settings.jwt_algorithm == "HS256":
            raise InvalidSetting("jwt_keys is a URL, and HS256 needs a secret: put it into a file.")
        return FetchedKeys(settings.jwt_keys, settings.jwt_algorithm, settings.webhook_timeout_s, clock)
    return FileKeys(settings.jwt_keys, settings.jwt_algorithm, clock)


def fitting(keys: Sequence[Key], kid: str | None) -> list[Key]:
    """Those of that name; if there are none, those without a name; for a token that names none, all. The first few of them."""
    if kid is None:
        return list(keys[:TRIED_MAX])
    return [key for key in keys if key.kid == kid][:TRIED_MAX] or [key for key in keys if key.kid is None][:TRIED_MAX]


class FileKeys:
    def __init__(self, path: str, algorithm: str, clock: Callable[[], float]) -> None:
        self._file = WatchedFile(path, lambda content: keys_of(content, algorithm), clock)

    async def candidates(self, kid: str | None) -> Sequence[Key]:
        return fitting(self._file.value(), kid)

    async def close(self) -> None:
        pass


class FetchedKeys:
    """Nobody waits for a fetch while there are keys, but tokens that name one which is not known. A set is taken as it is, even if it
    is empty; what cannot be fetched leaves the old ones in use for a day.
    """

    def __init__(self, url: str, algorithm: str, timeout_s: float, clock: Callable[[], float]) -> None:
        _check_address(url)
        self._url = url
        self._algorithm = algorithm
        self._timeout_s = timeout_s
        self._clock = clock
        self._keys: tuple[Key, ...] | None = None
        self._fetched_s = float("-inf")
        self._tried_s = float("-inf")
        self._failures = 0  # since the last success
        self._fetching: asyncio.Task[None] | None = None
        self._closed = False

    async def candidates(self, kid: str | None) -> Sequence[Key]:
        now_s = self._clock()
        # A clock that was set back must neither keep keys for longer nor drop them.
        self._fetched_s, self._tried_s = min(self._fetched_s, now_s), min(self._tried_s, now_s)
        age_s = now_s - self._fetched_s
        if self._keys is None or age_s >= KEPT_S:
            self._keys = None
            await self._fetch_if_due(min(REFETCH_S, _RETRY_MIN_S * 2.0 ** min(self._failures - 1, 10)) if self._failures else 0.0)
        elif age_s >= FETCH_EVERY_S and self._is_due(REFETCH_S):
            self._begin()
        if self._keys is None:
            raise AuthorizationUnavailable("The keys that credentials are verified with cannot be fetched.")
        found = fitting(self._keys, kid)
        if not found:
            await self._fetch_if_due(REFETCH_S)
            found = fitting(self._keys or (), kid)
            if not found and self._failures:
                raise AuthorizationUnavailable("The key that the credential names may be new, and the keys cannot be fetched.")
        return found

    async def close(self) -> None:
        self._closed = True
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    def _is_due(self, pause_s: float) -> bool:
        return not self._closed and self._fetching is None and self._clock() - self._tried_s >= pause_s

    def _begin(self) -> None:
        self._tried_s = self._clock()
        self._fetching = asyncio.get_running_loop().create_task(self._fetch())

    async def _fetch_if_due(self, pause_s: float) -> None:
        """All who wait share one fetch; whoever goes away does not end it."""
        if self._is_due(pause_s):
            self._begin()
        if self._fetching is not None:
            await asyncio.wait([self._fetching])

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s), new_session() as session:
                headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
                async with session.get(self._url, headers=headers, allow_redirects=False) as response:
                    if response.status != 200:
                        raise InvalidSetting(f"the status is {response.status}.")
                    content = await bounded_answer(response)
            keys = _of_set(_json(content), self._algorithm)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, InvalidSetting, AuthorizationUnavailable) as error:
            self._failures += 1
            what = error.what if isinstance(error, InvalidSetting | AuthorizationUnavailable) else repr(error)
            log.warning("the keys at %s cannot be fetched, for the %d. time: %s", shown_url(self._url), self._failures, what)
        else:
            if not keys:
                log.warning("of the keys at %s none fits %s", shown_url(self._url), self._algorithm)
            self._keys, self._failures, self._fetched_s = keys, 0, self._clock()
        finally:
            self._fetching = None


def _check_address(url: str) -> None:
    try:
        address = yarl.URL(url)
        host = address.host
    except ValueError:
        host = None
    if not host or address.scheme not in ("http", "https"):
        raise InvalidSetting("jwt_keys is neither a file nor an http or https URL.")
    if address.scheme == "http" and not _is_loopback(host):
        raise InvalidSetting(f"jwt_keys is fetched from {host} without TLS: whoever is on the way could put in keys. Use https.")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def keys_of(content: bytes, algorithm: str) -> tuple[Key, ...]:
    """What is in a file: public keys in PEM, a JWK set, a JWK, or for HS256 the secret. Raises InvalidSetting if that is no key."""
    blocks = [(match[1], match[0]) for match in _PEM.finditer(content)]
    if blocks or b"-----BEGIN" in content:
        return _of_pem(blocks, algorithm)
    if content.lstrip()[:1] == b"{":
        try:
            found = _json(content)
        except InvalidSetting:
            found = None
        if isinstance(found, dict) and ("keys" in found or "kty" in found):
            keys = _of_set(found if "keys" in found else {"keys": [found]}, algorithm)
            if not keys:
                raise InvalidSetting(f"none of its keys is one for {algorithm} {_NEEDED[algorithm]}.")
            return keys
    if algorithm != "HS256":
        raise InvalidSetting(f"it holds neither a public key in PEM nor a JWK set; {algorithm} {_NEEDED[algorithm]}.")
    return (Key(None, _secret(content.strip())),)


_NEEDED: Final = {
    "EdDSA": "needs a public key of Ed25519",
    "RS256": f"needs a public RSA key of at least {RSA_BITS_MIN:,} bits",
    "HS256": f"needs a secret of at least {SECRET_BYTES_MIN} bytes",
}


def _of_pem(blocks: Sequence[tuple[bytes, bytes]], algorithm: str) -> tuple[Key, ...]:
    if algorithm == "HS256":
        raise InvalidSetting("it holds a key in PEM, and HS256 needs a secret: anybody who has the public key could sign.")
    if not blocks or len(blocks) > TRIED_MAX or any(label not in _PUBLIC_PEM for label, _ in blocks):
        raise InvalidSetting(f"it must hold 1 to {TRIED_MAX} blocks PUBLIC KEY, and nothing that is private; a JWK set may hold more.")
    keys = []
    for _, block in blocks:
        try:
            keys.append(Key(None, _checked(load_pem_public_key(block), algorithm)))
        except (ValueError, UnsupportedAlgorithm):
            raise InvalidSetting("it holds something that looks like a key in PEM, and is none.") from None
    return tuple(keys)


def _checked(key: object, algorithm: str) -> Verifying:
    if algorithm == "EdDSA" and isinstance(key, Ed25519PublicKey):
        return key
    if algorithm == "RS256" and isinstance(key, RSAPublicKey) and key.key_size >= RSA_BITS_MIN:
        return key
    if algorithm == "HS256" and isinstance(key, bytes):
        return _secret(key)
    raise InvalidSetting(f"it holds a key of another kind; {algorithm} {_NEEDED[algorithm]}.")


def _secret(secret: bytes) -> bytes:
    if len(secret) < SECRET_BYTES_MIN:
        raise InvalidSetting(f"the secret has {len(secret)} bytes; HS256 {_NEEDED['HS256']}.")
    return secret


def _json(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidSetting("it is not JSON.") from None


def _of_set(found: object, algorithm: str) -> tuple[Key, ...]:
    """The keys of a JWK set that fit. Others are left out, as RFC 7517 (5) asks: a set may hold keys for other purposes."""
    members = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(members, list):
        raise InvalidSetting("it is not a JWK set: an object with a list `keys`.")
    keys = []
    for member in members:
        if isinstance(member, dict) and _is_meant(member, algorithm):
            try:
                keys.append(Key(_kid(member), _checked(_of_jwk(member, algorithm), algorithm)))
            except InvalidSetting as error:
                log.warning("a key of a JWK set is left out: %s", error.what)
    if sum(key.kid is None for key in keys) > TRIED_MAX:
        log.warning("a JWK set has more than %d keys without a kid: further ones are never tried", TRIED_MAX)
    return tuple(keys)


def _is_meant(member: dict[str, Any], algorithm: str) -> bool:
    operations = member.get("key_ops", ["verify"])
    return (
        member.get("kty") == _KEY_TYPES[algorithm]
        and member.get("use", "sig") == "sig"
        and member.get("alg", algorithm) in ((algorithm, "Ed25519") if algorithm == "EdDSA" else (algorithm,))
        and isinstance(operations, list)
        and "verify" in operations
    )


def _kid(member: dict[str, Any]) -> str | None:
    kid = member.get("kid")
    return kid if isinstance(kid, str) else None


def _of_jwk(member: dict[str, Any], algorithm: str) -> object:
    if algorithm != "HS256" and "d" in member:
        raise InvalidSetting("it is a private key, which does not belong here.")
    try:
        if algorithm == "EdDSA":
            return OKPAlgorithm.from_jwk(member)
        return RSAAlgorithm.from_jwk(member) if algorithm == "RS256" else HMACAlgorithm.from_jwk(member)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, UnsupportedAlgorithm):
        raise InvalidSetting("it is damaged.") from None
