"""Who may do what, as targets: users' credentials that are JSON Web Tokens, the keys that they are verified with, and patterns of names."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from fuzzing.targets import done, kind_of, text_of
from roskva.access.identity import Identity
from roskva.access.jwt import JwtVerifier
from roskva.access.jwt_keys import Key, keys_of
from roskva.access.patterns import compile_patterns
from roskva.config import ApplicationSettings
from roskva.errors import CredentialExpired, CredentialRefused, InvalidSetting

NOW_S: Final = 1_700_000_000.0
SECRET: Final = b"s" * 32
SETTINGS: Final = ApplicationSettings(
    authentication="jwt", jwt_algorithm="HS256", jwt_keys="keys", jwt_issuer="https://issuer.example", jwt_audience="shop"
)


def _part(value: object) -> bytes:
    return base64.urlsafe_b64encode(value if isinstance(value, bytes) else json.dumps(value).encode()).rstrip(b"=")


def _signed(head: bytes, payload: bytes) -> bytes:
    return b".".join([head, payload, _part(hmac.digest(SECRET, head + b"." + payload, hashlib.sha256))])


HEAD: Final = _part({"alg": "HS256", "typ": "JWT", "kid": "a"})
CLAIMS: Final[list[dict[str, Any]]] = [
    {"sub": "me", "exp": NOW_S + 60, "iat": NOW_S, "nbf": NOW_S, "iss": "https://issuer.example", "aud": "shop"},
    {"sub": "me", "exp": int(NOW_S) + 60, "iss": "https://issuer.example", "aud": ["shop", "x"], "realm": {"rooms": [1, "a"]}},
    {"sub": "me", "exp": NOW_S - 600, "iss": "https://issuer.example", "aud": "shop"},
]


def signed(claims: dict[str, Any]) -> bytes:
    return _signed(HEAD, _part(claims))


CREDENTIALS: Final = [signed(claims) for claims in CLAIMS]
_GOOD: Final = frozenset(
    credential.rpartition(b".")[0] for credential in CREDENTIALS
)  # what was signed; its signature may be written otherwise


class Keys:
    async def candidates(self, kid: str | None) -> Sequence[Key]:
        return (Key(None, SECRET),)

    async def close(self) -> None: ...


_VERIFIER: Final = JwtVerifier(SETTINGS, lambda: NOW_S, SimpleNamespace(settings=SETTINGS, keys=Keys()))  # type: ignore[arg-type]


def _identified(credential: str) -> Identity | str:
    try:
        return done(_VERIFIER.identify(credential))
    except (CredentialRefused, CredentialExpired) as error:
        assert not any(len(part) >= 8 and part in str(error) for part in credential.split(".")), "an error quotes a credential"
        return kind_of(error)


def credentials(data: bytes) -> str:
    """Nothing counts that was not signed. Whatever claims are signed, only a user with a time of its own comes out of them."""
    found = _identified(text_of(data))
    if isinstance(found, Identity):
        assert data.rpartition(b".")[0] in _GOOD, "nobody signed this"
    head, _, rest = data.partition(b".")
    signed = _identified(text_of(_signed(head, rest.partition(b".")[0])))
    for identity in (found, signed):
        if isinstance(identity, Identity):
            assert identity.user
            assert identity.user.isprintable()
            assert NOW_S < identity.until_s <= NOW_S + SETTINGS.credential_s_max
            assert math.isfinite(identity.issued_s)
            compile_patterns(["inbox:{sub}:*", "{realm.rooms}", "{aud}{aud}{aud}"]).allow(identity.claims, "x" * 128)
    return "; ".join("good" if isinstance(one, Identity) else one for one in (found, signed))


JWK_SETS: Final = [
    json.dumps({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", "kid": "a"}]}).encode(),
    json.dumps({"keys": [{"kty": "RSA", "n": "s" * 342, "e": "AQAB", "use": "sig", "alg": "RS256", "key_ops": ["verify"]}]}).encode(),
    json.dumps({"kty": "oct", "k": "c" * 64}).encode(),
    b"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n-----END PUBLIC KEY-----\n",
]


def jwk_sets(data: bytes) -> str:
    """For any algorithm, keys or InvalidSetting, which does not quote them."""
    answers = []
    for algorithm in ("EdDSA", "RS256", "HS256"):
        try:
            answers.append(f"good {len(keys_of(data, algorithm))}")
        except InvalidSetting as error:
            assert len(str(error)) < 400, "an error grows with its input"
            answers.append(kind_of(error)[:40])
    return "; ".join(answers)


PATTERNS: Final = [
    json.dumps({"patterns": patterns, "claims": claims, "name": name}).encode()
    for patterns in (["news:*", "inbox:{sub}"], ["{{x}}*{realm.rooms}*{sub}*"], ["a*a*a*a*b"])
    for claims, name in (({"sub": "me"}, "inbox:me"), ({"sub": 7, "realm": {"rooms": ["a", "*", 1.5]}}, "{x}aa7"))
]


class _Question(msgspec.Struct):
    patterns: list[str]
    claims: dict[str, Any]
    name: str


def patterns(data: bytes) -> str:
    """A pattern is refused, or answers; what no claim and no star stands in matches itself alone."""
    try:
        question = msgspec.json.decode(data, type=_Question)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "no question"
    answers = []
    for pattern in question.patterns[:20]:
        try:
            allowed = compile_patterns([pattern]).allow(question.claims, question.name)
        except InvalidSetting as error:
            answers.append(kind_of(error)[-60:])
            continue
        if not set(pattern) & set("*{}"):
            assert allowed == (question.name == pattern)
        if "*" not in pattern and "{" not in question.name + pattern:
            assert allowed == (question.name == pattern.replace("}}", "}"))
        answers.append(f"good {allowed}")
    return "; ".join(sorted(set(answers)))
