"""JSON Web Tokens: what is accepted, and everything that must not be."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roskva.access.jwt import CREDENTIAL_BYTES_MAX, JwtVerifier
from roskva.config import ApplicationSettings
from roskva.errors import CredentialExpired, CredentialRefused, InvalidSetting
from tests.access.service import NOW_S, Clock, jwk, pem, token

SECRET = b"0123456789abcdef0123456789abcdef"
Verifier = Callable[..., JwtVerifier]


@pytest.fixture
def verifier(tmp_path: Path, clock: Clock, ed_key: Ed25519PrivateKey) -> Verifier:
    def make(content: bytes | None = None, algorithm: str = "EdDSA", **more: Any) -> JwtVerifier:
        file = tmp_path / "keys"
        file.write_bytes(pem(ed_key) if content is None else content)
        return JwtVerifier(ApplicationSettings(authentication="jwt", jwt_algorithm=algorithm, jwt_keys=str(file), **more), clock)

    return make


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


async def refused(verifier: JwtVerifier, credential: str) -> str:
    with pytest.raises(CredentialRefused) as caught:
        await verifier.identify(credential)
    assert len(credential) < 20 or credential not in str(caught.value)
    return caught.value.what


async def test_a_token_says_who_its_user_is(verifier: Verifier, ed_key: Ed25519PrivateKey) -> None:
    identity = await verifier().identify(token(ed_key, org=7, realm={"roles": ["a"]}))
    assert identity.user == "alice"
    assert identity.claims["org"] == 7
    assert identity.claims["realm"] == {"roles": ["a"]}
    assert identity.issued_s == NOW_S
    assert identity.until_s == NOW_S + 3600 + 30


async def test_a_credential_counts_for_no_longer_than_the_settings_say(verifier: Verifier, ed_key: Ed25519PrivateKey) -> None:
    identity = await verifier(credential_s_max=600.0).identify(token(ed_key, exp=NOW_S + 1e9))
    assert identity.until_s == NOW_S + 600


async def test_without_iat_it_was_issued_at_an_unknown_time(verifier: Verifier, ed_key: Ed25519PrivateKey) -> None:
    assert (await verifier().identify(token(ed_key, iat=None))).issued_s == 0.0


@pytest.mark.parametrize("algorithm", ["EdDSA", "RS256", "HS256"])
async def test_each_algorithm_with_each_kind_of_file(
    algorithm: str, verifier: Verifier, ed_key: Ed25519PrivateKey, rsa_key: RSAPrivateKey
) -> None:
    key: Any = {"EdDSA": ed_key, "RS256": rsa_key, "HS256": SECRET}[algorithm]
    if algorithm == "HS256":
        one: dict[str, Any] = {"kty": "oct", "k": base64.urlsafe_b64encode(SECRET).decode(), "kid": "1"}
        plain = b"\n  " + SECRET + b"\n"
    else:
        one = jwk(key.public_key(), kid="1")
        plain = pem(key)
    for content in (plain, json.dumps(one).encode(), json.dumps({"keys": [one]}).encode()):
        found = verifier(content, algorithm)
        assert (await found.identify(token(key, algorithm))).user == "alice"
        assert (await found.identify(token(key, algorithm, {"kid": "1"}))).user == "alice"
        await refused(found, token(key, algorithm)[:-8] + "AAAAAAAA")


# Algorithms.


async def test_an_unsigned_token_is_refused(verifier: Verifier) -> None:
    claims = {"sub": "alice", "exp": NOW_S + 60}
    for algorithm in ("none", "None", "NONE", "", None, "EdDSA"):
        for signature in ("", "AAAA"):
            await refused(verifier(), f"{encoded({'alg': algorithm, 'typ': 'JWT'})}.{encoded(claims)}.{signature}")
    await refused(verifier(), f"{encoded({'typ': 'JWT'})}.{encoded(claims)}.")


@pytest.mark.parametrize("algorithm", ["EdDSA", "RS256"])
async def test_a_public_key_is_no_secret(algorithm: str, verifier: Verifier, ed_key: Ed25519PrivateKey, rsa_key: RSAPrivateKey) -> None:
    """Algorithm confusion: HS256 with the public key, which everybody has, as the secret."""
    key = ed_key if algorithm == "EdDSA" else rsa_key
    found = verifier(pem(key), algorithm)
    raw = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    for secret in (pem(key), pem(key).strip(), raw):
        signed = f"{encoded({'alg': 'HS256', 'typ': 'JWT'})}.{encoded({'sub': 'alice', 'exp': NOW_S + 60})}"
        signature = base64.urlsafe_b64encode(hmac.digest(secret, signed.encode(), hashlib.sha256)).rstrip(b"=").decode()
        assert "not signed with" in await refused(found, f"{signed}.{signature}")
        # and with a header that claims to be what is expected
        signed = f"{encoded({'alg': algorithm})}.{signed.split('.')[1]}"
        signature = base64.urlsafe_b64encode(hmac.digest(secret, signed.encode(), hashlib.sha256)).rstrip(b"=").decode()
        await refused(found, f"{signed}.{signature}")


async def test_other_algorithms_of_the_same_key_are_refused(verifier: Verifier, rsa_key: RSAPrivateKey) -> None:
    found = verifier(pem(rsa_key), "RS256")
    for algorithm in ("RS384", "RS512", "PS256"):
        assert "not signed with RS256" in await refused(found, token(rsa_key, algorithm))
    assert "not signed with HS256" in await refused(verifier(SECRET * 2, "HS256"), token(SECRET * 2, "HS512"))


async def test_of_another_key(verifier: Verifier) -> None:
    assert "signature" in await refused(verifier(), token(Ed25519PrivateKey.generate()))


async def test_keys_in_the_header_are_not_believed(verifier: Verifier) -> None:
    own = Ed25519PrivateKey.generate()
    for header in (
        {"jwk": jwk(own.public_key())},
        {"jku": "http://127.0.0.1:1/keys"},
        {"x5u": "http://127.0.0.1:1/"},
        {"kid": "/dev/null"},
    ):
        assert "signature" in await refused(verifier(), token(own, headers=header))


async def test_critical_extensions_that_nobody_knows_are_refused(verifier: Verifier, ed_key: Ed25519PrivateKey) -> None:
    header, payload = encoded({"alg": "EdDSA", "crit": ["exp2"], "exp2": 1}), encoded({"sub": "alice", "exp": NOW_S + 60})
    signature = base64.urlsafe_b64encode(ed_key.sign(f"{header}.{payload}".encode())).rstrip(b"=").decode()
    await refused(verifier(), f"{header}.{payload}.{signature}")


# Keys that must not be used.


@pytest.mark.parametrize("content", [b"", b"short", SECRET[:31], b" " * 40 + b"x" * 31 + b"\n" * 40])
def test_a_short_secret_is_refused(content: bytes, verifier: Verifier) -> None:
    with pytest.raises(InvalidSetting, match="32 bytes"):
        verifier(content, "HS256")


def test_a_short_secret_in_a_jwk_is_refused(verifier: Verifier) -> None:
    with pytest.raises(InvalidSetting, match="none of its keys"):
        verifier(json.dumps({"kty": "oct", "k": base64.urlsafe_b64encode(SECRET[:31]).decode()}).encode(), "HS256")


def test_a_small_rsa_key_is_refused(verifier: Verifier) -> None:
    small = generate_private_key(65537, 1024)
    with pytest.raises(InvalidSetting, match="2,048 bits"):
        verifier(pem(small), "RS256")
    with pytest.raises(InvalidSetting, match="none of its keys"):
        verifier(json.dumps(jwk(small.public_key())).encode(), "RS256")


def test_keys_of_another_kind_are_refused(verifier: Verifier, ed_key: Ed25519PrivateKey, rsa_key: RSAPrivateKey) -> None:
    elliptic = ec.generate_private_key(ec.SECP256R1()).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    ed448 = Ed448PrivateKey.generate().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for content, algorithm in [
        (pem(rsa_key), "EdDSA"),
        (pem(ed_key), "RS256"),
        (elliptic, "EdDSA"),
        (elliptic, "RS256"),
        (ed448, "EdDSA"),
        (pem(rsa_key), "HS256"),
        (pem(ed_key), "HS256"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "EdDSA"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n", "EdDSA"),
        (b"nothing of the kind", "EdDSA"),
        (b"{}", "RS256"),
        (b'{"keys": []}', "EdDSA"),
        (b'{"keys": 7}', "EdDSA"),
        (b'{"keys": [7, null, {}]}', "EdDSA"),
        (json.dumps(jwk(rsa_key.public_key())).encode(), "EdDSA"),
        (json.dumps(jwk(ed_key.public_key(), use="enc")).encode(), "EdDSA"),
        (json.dumps(jwk(ed_key.public_key(), alg="ES256")).encode(), "EdDSA"),
        (json.dumps(jwk(ed_key.public_key(), key_ops=["sign"])).encode(), "EdDSA"),
        (json.dumps({**jwk(ed_key.public_key()), "x": "AAAA"}).encode(), "EdDSA"),
        (b'{"kty": "RSA", "n": 7, "e": "AQAB"}', "RS256"),
        (b'{"kty": "oct"}', "HS256"),
    ]:
        with pytest.raises(InvalidSetting):
            verifier(content, algorithm)


def test_a_private_key_does_not_belong_here(verifier: Verifier, ed_key: Ed25519PrivateKey) -> None:
    with pytest.raises(InvalidSetting, match="private") as caught:
        verifier(ed_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert "BEGIN" not in str(caught.value)
    with pytest.raises(InvalidSetting, match="none of its keys"):
        verifier(json.dumps(jwk(ed_key.public_key(), d="AAAA")).encode())


def test_files_that_are_none(tmp_path: Path, clock: Clock) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * 100_000)
    for path in ("", str(tmp_path / "missing"), str(tmp_path), str(tmp_path / "pipe"), str(tmp_path / "large")):
        with pytest.raises(InvalidSetting):
            JwtVerifier(ApplicationSettings(authentication="jwt", jwt_algorithm="HS256", jwt_keys=path), clock)


# Several keys, and new ones.


async def test_keys_of_a_set_are_chosen_by_name(verifier: Verifier, rsa_key: RSAPrivateKey) -> None:
    keys = [Ed25519PrivateKey.generate() for _ in range(3)]
    members = [jwk(key.public_key(), kid=str(number)) for number, key in enumerate(keys)]
    found = verifier(json.dumps({"keys": [jwk(rsa_key.public_key(), kid="rsa"), {"kty": "new"}, *members]}).encode())
    for number, key in enumerate(keys):
        assert (await found.identify(token(key, headers={"kid": str(number)}))).user == "alice"
        assert (await found.identify(token(key))).user == "alice"  # without a name, each is tried
        assert "signature" in await refused(found, token(key, headers={"kid": str((number + 1) % 3)}))
    assert "not known" in await refused(found, token(keys[0], headers={"kid": "3"}))
    assert "not known" in await refused(found, token(keys[0], headers={"kid": "rsa"}))


async def test_at_most_4_keys_are_tried(verifier: Verifier) -> None:
    """Each costs half a millisecond, and a forger need not pay for it."""
    keys = [Ed25519PrivateKey.generate() for _ in range(20)]
    found = verifier(json.dumps({"keys": [jwk(key.public_key(), kid=str(number)) for number, key in enumerate(keys)]}).encode())
    assert (await found.identify(token(keys[3]))).user == "alice"
    assert "signature" in await refused(found, token(keys[4]))
    assert (await found.identify(token(keys[16], headers={"kid": "16"}))).user == "alice"
    found = verifier(json.dumps({"keys": [jwk(key.public_key()) for key in keys]}).encode())
    for headers in (None, {"kid": "invented"}):
        assert (await found.identify(token(keys[3], headers=headers))).user == "alice"
        assert "signature" in await refused(found, token(keys[4], headers=headers))


def test_more_in_pem_than_are_tried_is_an_error_that_says_so(verifier: Verifier) -> None:
    """Whoever has the fifth key would be refused for ever, and nobody would know why."""
    keys = [pem(Ed25519PrivateKey.generate()) for _ in range(5)]
    verifier(b"".join(keys[:4]))
    with pytest.raises(InvalidSetting, match=r"1 to 4 .* a JWK set may hold more"):
        verifier(b"".join(keys))


async def test_several_public_keys_in_pem(verifier: Verifier) -> None:
    first, second = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    found = verifier(pem(first) + b"\n# the next one\n" + pem(second))
    assert (await found.identify(token(first))).user == "alice"
    assert (await found.identify(token(second, headers={"kid": "whatever"}))).user == "alice"


async def test_a_file_that_was_replaced_is_read_again(verifier: Verifier, tmp_path: Path, clock: Clock, ed_key: Ed25519PrivateKey) -> None:
    found, new = verifier(), Ed25519PrivateKey.generate()
    (tmp_path / "new").write_bytes(pem(new))
    (tmp_path / "new").replace(tmp_path / "keys")
    clock.now_s += 0.9
    assert (await found.identify(token(ed_key))).user == "alice"  # it is not looked at yet
    clock.now_s += 0.2
    assert (await found.identify(token(new))).user == "alice"
    assert "signature" in await refused(found, token(ed_key))


@pytest.mark.parametrize("content", [None, b"", b"nonsense"])
async def test_while_the_file_is_unusable_the_old_keys_count(
    content: bytes | None, verifier: Verifier, tmp_path: Path, clock: Clock, ed_key: Ed25519PrivateKey
) -> None:
    found = verifier()
    if content is None:
        (tmp_path / "keys").unlink()
    else:
        (tmp_path / "keys").write_bytes(content)
    clock.now_s += 5
    assert (await found.identify(token(ed_key))).user == "alice"
    new = Ed25519PrivateKey.generate()
    (tmp_path / "keys").write_bytes(pem(new))
    clock.now_s += 5
    assert (await found.identify(token(new))).user == "alice"


# Claims.


async def test_expired(verifier: Verifier, clock: Clock, ed_key: Ed25519PrivateKey) -> None:
    found, credential = verifier(jwt_leeway_s=10.0), token(ed_key, exp=NOW_S + 60)
    clock.now_s = NOW_S + 69.9
    assert (await found.identify(credential)).until_s == NOW_S + 70
    clock.now_s = NOW_S + 70
    with pytest.raises(CredentialExpired):
        await found.identify(credential)


@pytest.mark.parametrize("exp", [None, "never", "1900000000", True, [NOW_S + 60], -1, 1e300])
async def test_a_token_must_say_when_it_expires(exp: object, verifier: Verifier, ed_key: Ed25519PrivateKey) -> None:
    assert "exp" in await refused(verifier(), token(ed_key, exp=exp))


@pytest.mark.parametrize("sub", [None, "", 7, ["alice"], "x" * 257, "a\nb"])
async def test_a_token_must_name_its_user(sub: object, verifier: Verifier, ed_key: Ed25519PrivateKey) -> None:
    assert "user" in await refused(verifier(), token(ed_key, sub=sub))


async def test_not_yet_valid(verifier: Verifier, clock: Clock, ed_key: Ed25519PrivateKey) -> None:
    found, credential = verifier(), token(ed_key, nbf=NOW_S + 60)
    assert "nbf" in await refused(found, credential)
    clock.now_s += 30
    assert (await found.identify(credential)).user == "alice"
    assert "nbf" in await refused(found, token(ed_key, nbf="tomorrow"))


async def test_issued_in_the_future(verifier: Verifier, ed_key: Ed25519PrivateKey) -> None:
    """It would outlast its revocation."""
    found = verifier()
    assert (await found.identify(token(ed_key, iat=NOW_S + 29))).issued_s == NOW_S + 29
    assert "iat" in await refused(found, token(ed_key, iat=NOW_S + 31))
    for iat in ("now", True, -5):
        assert "iat" in await refused(found, token(ed_key, iat=iat))


async def test_the_issuer(verifier: Verifier, ed_key: Ed25519PrivateKey) -> None:
    found = verifier(jwt_issuer="https://id.example")
    assert (await found.identify(token(ed_key, iss="https://id.example"))).user == "alice"
    for iss in (None, "https://id.example/", "https://other.example"):
        assert "iss" in await refused(found, token(ed_key, iss=iss))
    assert (await verifier().identify(token(ed_key, iss="anybody"))).user == "alice"


async def test_the_audience(verifier: Verifier, ed_key: Ed25519PrivateKey) -> None:
    found = verifier(jwt_audience="roskva")
    for good in ("roskva", ["roskva"], ["other", "roskva"]):
        assert (await found.identify(token(ed_key, aud=good))).user == "alice"
    for bad in (None, "other", [], ["other"], "", 7, {"roskva": 1}, [["roskva"]]):
        assert "aud" in await refused(found, token(ed_key, aud=bad))
    nobody = verifier()
    assert (await nobody.identify(token(ed_key))).user == "alice"
    for bad in ("roskva", ["roskva"], "", []):
        assert "aud" in await refused(nobody, token(ed_key, aud=bad))


async def test_claims_that_are_no_object(verifier: Verifier, ed_key: Ed25519PrivateKey) -> None:
    for payload in (b"[]", b"7", b"null", b"", b"{", b'{"sub": NaN}', b"\xff", b"[" * 4_000):
        signed = encoded({"alg": "EdDSA"}) + "." + base64.urlsafe_b64encode(payload).rstrip(b"=").decode()
        signature = base64.urlsafe_b64encode(ed_key.sign(signed.encode())).rstrip(b"=").decode()
        await refused(verifier(), f"{signed}.{signature}")


# Whatever else comes.


async def test_what_is_too_long_is_refused_before_anything_is_computed(
    verifier: Verifier, ed_key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verifier()
    just_right = token(ed_key, pad="x" * 5_000)
    assert len(just_right) <= CREDENTIAL_BYTES_MAX
    assert (await found.identify(just_right)).user == "alice"

    def never(*_: object, **__: object) -> None:
        raise AssertionError("something was computed")

    monkeypatch.setattr(found._jws, "decode_complete", never)
    assert "8,192" in await refused(found, token(ed_key, pad="x" * 8_000))
    assert "8,192" in await refused(found, "x" * 50_000_000)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(max_size=60), st.text("abcAB01-_.=", max_size=60), st.lists(st.binary(max_size=40), min_size=1, max_size=4)))
async def test_anything_else_is_refused_and_never_an_error(verifier: Verifier, given_: str | list[bytes]) -> None:
    credential = given_ if isinstance(given_, str) else ".".join(base64.urlsafe_b64encode(part).decode() for part in given_)
    await refused(verifier(), credential)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
async def test_a_token_that_was_changed_anywhere_is_refused(verifier: Verifier, ed_key: Ed25519PrivateKey, data: st.DataObject) -> None:
    credential = token(ed_key)
    place = data.draw(st.integers(0, len(credential) - 1))
    other = data.draw(st.sampled_from("abcXYZ019-_.=").filter(lambda character: character != credential[place]))
    changed = credential[:place] + other + credential[place + 1 :]
    await refused(verifier(), changed)


async def test_header_names_of_other_types(verifier: Verifier, ed_key: Ed25519PrivateKey) -> None:
    headers: list[object] = [
        {"alg": ["EdDSA"]},
        {"alg": {"EdDSA": 1}},
        {"alg": "EdDSA", "kid": 7},
        {"alg": "EdDSA", "kid": ["a"]},
        [],
        "EdDSA",
        7,
    ]
    for header in headers:
        await refused(verifier(), f"{encoded(header)}.{encoded({'sub': 'alice'})}.AAAA")


async def test_it_ends_when_it_says_so_even_if_nothing_limits_it(verifier: Verifier, ed_key: Ed25519PrivateKey) -> None:
    identity = await verifier(credential_s_max=1e12).identify(token(ed_key, exp=NOW_S + 1e9))
    assert identity.until_s == NOW_S + 1e9 + 30
    assert math.isfinite(identity.until_s)
