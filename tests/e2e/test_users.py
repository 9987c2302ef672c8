"""A service whose application asks who its users are: credentials are renewed, keys added, users revoked and erased."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import roskva
from roskva.access.publish_keys import hash_of, new_key
from roskva.errors import PublishKeyRefused
from roskva.keys import load_keys
from tests.access.service import pem

from .service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

RELOADED_S = 3.0  # two looks at the file and a second more, as the commands say
SHORT_S = 6


class Shop(Service):
    """`roskva up` with a settings file that has one application, and whoever signs its users' credentials."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "roskva.toml"
        self._signing, self.publish_key = Ed25519PrivateKey.generate(), new_key()
        public = folder / "shop.pem"
        public.write_bytes(pem(self._signing))
        table = {"publish_keys": [hash_of(self.publish_key)], "authentication": "jwt", "jwt_keys": str(public), "jwt_leeway_s": 0}
        table |= {"registrable": ["inbox:{sub}", "news:*"]}
        self.file.write_text("[applications.shop]\n" + "".join(f"{name} = {json.dumps(one)}\n" for name, one in table.items()))
        super().__init__(folder / "data", "--config", str(self.file))

    def credential(self, user: str, lasts_s: int = 3600) -> str:
        now_s = int(time.time())
        return jwt.encode({"sub": user, "iat": now_s, "exp": now_s + lasts_s}, self._signing, algorithm="EdDSA")

    def publisher(self, key: str = "") -> roskva.Publisher:
        return roskva.Publisher(self.url, application="shop", key=key or self.publish_key)

    def id_of(self, client: roskva.Client) -> str:
        assert client._core is not None
        return load_keys(self.data).keyring.verify(client._core._handshake.token).client

    def clients_of(self, user: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(f"/v1/inspect/users/shop/{user}")["clients"]
        return found

    def order(self, *arguments: str) -> str:
        done = self.run(*arguments, "--config", str(self.file))
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    shop = Shop(tmp_path_factory.mktemp("users"))
    shop.start()
    try:
        yield shop
    finally:
        shop.stop()


async def until(true: Callable[[], bool], limit_s: float = 20.0) -> None:
    async with asyncio.timeout(limit_s):
        while not true():
            await asyncio.sleep(0.05)


class Listener:
    """A client of one user, and what it heard."""

    def __init__(self, shop: Shop, user: str, credential: str | Callable[[], str], state: Path | None = None) -> None:
        self.versions: list[int | None] = []
        self.refused: list[str] = []
        self.failed: list[str] = []
        self.client = roskva.Client(
            shop.url,
            application="shop",
            credential=credential,
            state=state,
            on_notify=lambda notification: self.versions.append(notification.version),
            on_failure=lambda name, transient, code, message: self.failed.append(code),
            on_credential_refused=lambda code, message: self.refused.append(code),
        )
        self._name = f"inbox:{user}"

    async def __aenter__(self) -> Self:
        await self.client.start()
        await self.client.register(self._name)
        await self.client.synced(20)
        await until(lambda: bool(self.versions))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()


async def test_a_client_outlives_its_credentials(shop: Shop) -> None:
    """Each is good for six seconds, and asked for in time: nothing is registered again, nothing is refused, and changes are heard."""
    given: list[str] = []

    def sign_in() -> str:
        given.append(shop.credential("ann", SHORT_S))
        return given[-1]

    async with Listener(shop, "ann", sign_in) as ann, shop.publisher() as publisher:
        identity = shop.id_of(ann.client)
        (before,) = shop.clients_of("ann")
        began_s, version = time.monotonic(), 0
        while time.monotonic() - began_s < 2.5 * SHORT_S:
            version += 1
            await publisher.publish("inbox:ann", version)
            await until(lambda: version in ann.versions)  # noqa: B023  # it is waited for here
            await asyncio.sleep(0.3)
        await until(lambda: ann.client.in_sync)
        assert len(given) >= 3, "it was refreshed twice at least"
        assert len(set(given)) == len(given)
        assert (ann.refused, ann.failed) == ([], [])
        assert [one for one in ann.versions if one] == list(range(1, version + 1))
        assert shop.id_of(ann.client) == identity == before["client"]
        assert shop.clients_of("ann") == [before]
        assert (before["registrations"], before["online"]) == (1, True)
    logged = shop.log.read_text()
    assert not any(credential in logged for credential in given)


async def test_a_key_that_is_added_counts_within_the_stated_time(shop: Shop) -> None:
    key = shop.order("app", "key", "add", "shop").strip()
    await asyncio.sleep(RELOADED_S)
    async with Listener(shop, "kim", shop.credential("kim")) as kim, shop.publisher(key) as publisher:
        await publisher.publish("inbox:kim", 7)
        await until(lambda: 7 in kim.versions)
    async with shop.publisher(new_key()) as publisher:
        with pytest.raises(PublishKeyRefused):
            await publisher.publish("inbox:kim", 8)
    assert key not in shop.log.read_text()


async def test_a_revoked_user_hears_nothing_after_the_stated_time(shop: Shop) -> None:
    async with (
        Listener(shop, "eve", shop.credential("eve")) as eve,
        Listener(shop, "bob", shop.credential("bob")) as bob,
        shop.publisher() as publisher,
    ):
        await publisher.publish("inbox:eve", 1)
        await until(lambda: 1 in eve.versions)
        assert "within 3 s" in shop.order("user", "revoke", "shop", "eve")
        await asyncio.sleep(RELOADED_S)
        for name in ("inbox:eve", "inbox:bob"):
            await publisher.publish(name, 2)
        await until(lambda: 2 in bob.versions)
        await until(lambda: "credential-refused" in eve.refused)
        await asyncio.sleep(1.0)
        assert 2 not in eve.versions
        assert (bob.refused, bob.failed) == ([], [])
        # Who signs in again hears what was missed, and need not register again.
        eve.client.use_credential(shop.credential("eve"))
        await until(lambda: 2 in eve.versions)
        assert eve.failed == []


async def test_a_user_that_is_erased_begins_anew(shop: Shop) -> None:
    async with Listener(shop, "dan", shop.credential("dan")) as dan, Listener(shop, "bob", shop.credential("bob")) as bob:
        before, others = shop.id_of(dan.client), shop.id_of(bob.client)
        assert "1 clients of dan are erased." in shop.order("user", "erase", "shop", "dan", "--yes", "--data", str(shop.data))
        await until(lambda: shop.id_of(dan.client) != before)
        async with shop.publisher() as publisher:
            await publisher.publish("inbox:dan", 3)
            await until(lambda: 3 in dan.versions)
        assert [one["client"] for one in shop.clients_of("dan")] == [shop.id_of(dan.client)]
        assert shop.id_of(bob.client) == others


async def test_another_user_of_the_same_state_file_is_another_client(shop: Shop, tmp_path: Path) -> None:
    state, ids = tmp_path / "me.state", []
    for user in ("fay", "gus", "fay"):
        async with Listener(shop, user, shop.credential(user), state) as listener:
            ids.append(shop.id_of(listener.client))
            (known,) = [one for one in shop.clients_of(user) if one["client"] == ids[-1]]
            assert known["registrations"] == 1
    assert len(set(ids)) == 3, "the file remembers the last one only"
    assert len(shop.clients_of("gus")) == 1
