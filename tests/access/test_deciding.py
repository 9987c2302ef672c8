"""All that decides, as one thing; and settings that could verify nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import roskva.access
from roskva.access import Access, check_access
from roskva.access.per_settings import PerSettings
from roskva.config import ApplicationSettings, load
from roskva.errors import InvalidSetting
from tests.access.service import Clock, answering, pem, serving, token


async def test_from_a_credential_to_what_its_user_may_hear(tmp_path: Path, clock: Clock, ed_key: Ed25519PrivateKey) -> None:
    async def answer(_request: web.Request, body: dict[str, list[str]]) -> web.Response:
        return web.json_response({"allowed": [name for name in body["objects"] if name.endswith("1")]})

    (tmp_path / "keys").write_bytes(pem(ed_key))
    async with serving(answer) as service:
        settings = ApplicationSettings(
            authentication="jwt", jwt_keys=str(tmp_path / "keys"), registrable=("inbox:{sub}:*",), authorization_webhook=service.url
        )
        access = Access(clock)
        try:
            identity = await access.identify("shop", settings, "phone", token(ed_key))
            assert not access.is_revoked(settings, identity)
            assert access.known("shop", settings, identity, "phone", "inbox:alice:1") is None
            answers = await access.ask("shop", settings, identity, "phone", ["inbox:alice:1", "inbox:alice:2", "inbox:bob:1"])
            assert answers == {"inbox:alice:1": True, "inbox:alice:2": False, "inbox:bob:1": False}
            assert access.known("shop", settings, identity, "phone", "inbox:alice:1") is True
            access.forget("shop", "alice")
            assert access.known("shop", settings, identity, "phone", "inbox:alice:1") is None
        finally:
            await access.close()


async def test_both_use_the_same_webhooks(clock: Clock) -> None:
    async with serving(answering({"user": "alice", "allowed": []})) as service:
        settings = ApplicationSettings(authentication="webhook", authentication_webhook=service.url, authorization_webhook=service.url)
        access = Access(clock)
        identity = await access.identify("shop", settings, "phone", "secret")
        await access.ask("shop", settings, identity, "phone", ["x"])
        session = access._credentials.webhooks._session
        assert session is access._authorization._webhooks._session
        assert session is not None
        assert not session.closed
        await access.close()
        assert session.closed


def test_settings_that_need_nothing_are_good() -> None:
    check_access("demo", ApplicationSettings())


def test_settings_that_are_complete_are_good(tmp_path: Path, ed_key: Ed25519PrivateKey) -> None:
    (tmp_path / "keys").write_bytes(pem(ed_key))
    (tmp_path / "secret").write_text("s3cret")
    check_access(
        "shop", ApplicationSettings(authentication="jwt", jwt_keys=str(tmp_path / "keys"), webhook_key_file=str(tmp_path / "secret"))
    )
    check_access("shop", ApplicationSettings(authentication="webhook", authentication_webhook="https://shop.example/who"))


@pytest.mark.parametrize(
    "settings",
    [
        ApplicationSettings(authentication="jwt"),
        ApplicationSettings(authentication="jwt", jwt_keys="/nowhere"),
        ApplicationSettings(authentication="jwt", jwt_keys="http://keys.example/set"),
        ApplicationSettings(authentication="webhook"),
        ApplicationSettings(webhook_key_file="/nowhere"),
        ApplicationSettings(registrable=("inbox:{sub",)),
    ],
)
def test_settings_that_could_verify_nobody_are_refused_with_their_place(settings: ApplicationSettings) -> None:
    with pytest.raises(InvalidSetting, match=r"^\[applications\.shop\]: "):
        check_access("shop", settings)


@pytest.mark.parametrize("pattern", ["inbox:{sub", "}", "{}", "x" * 513])
def test_the_file_of_settings_refuses_what_is_no_pattern(pattern: str, tmp_path: Path) -> None:
    file = tmp_path / "roskva.toml"
    file.write_text(f'[applications.shop]\nregistrable = ["news:*", "{pattern}"]\n')
    with pytest.raises(InvalidSetting, match="registrable"):
        load(file, {}, {})
    file.write_text('[applications.shop]\nregistrable = ["news:*", "inbox:{sub}", "{{x}}"]\n')
    assert load(file, {}, {}).applications["shop"].registrable == ("news:*", "inbox:{sub}", "{{x}}")


def test_every_public_name_is_there() -> None:
    for name in roskva.access.__all__:
        assert getattr(roskva.access, name) is not None
    with pytest.raises(AttributeError):
        _ = roskva.access.nothing


def test_what_is_made_of_settings_is_made_once_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roskva.access.per_settings._KEPT_MAX", 3)
    made: list[float] = []

    def make(settings: ApplicationSettings) -> float:
        made.append(settings.heartbeat_s)
        return settings.heartbeat_s

    per_settings = PerSettings(make)
    all_settings = [ApplicationSettings(heartbeat_s=float(number)) for number in range(1, 11)]
    for settings in all_settings:
        assert per_settings.of(settings) == per_settings.of(settings) == settings.heartbeat_s
    assert len(made) == 10
    assert len(per_settings._made) == 3
