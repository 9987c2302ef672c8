"""Applications that ask who their users are, and lean clients that show it: an open one, one with JSON Web Tokens and patterns with a
claim, and one that asks a webhook, too.

The webhook answers in the process of the load generator: what it costs there is not the gateway's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bench.clients import LeanClient
from bench.service import APPLICATION
from roskva.config import ApplicationSettings

TENANT: Final = "t1"
PREFIX: Final = f"{TENANT}:"  # of the objects that the tenant's users may register for
REGISTRABLE: Final = ("news:*", "{tenant}:*")
_CREDENTIAL_S: Final = 3_600


class OpenClient(LeanClient):
    """Of an application that asks nothing."""

    def prepare(self) -> None:
        """What must not be counted."""


class SignedIn(OpenClient):
    """Shows a credential, which was made before."""

    __slots__ = ("_credential",)

    application: ClassVar[str] = "members"
    key: ClassVar[Ed25519PrivateKey]

    def prepare(self) -> None:
        self._credential = credential_of(self.key, self.device)

    def credential(self) -> str:
        return self._credential


class AskedFor(SignedIn):
    """Of an application that is asked for each object."""

    application: ClassVar[str] = "asked"


class Guard(NamedTuple):
    """What an application asks, in words; its clients; its settings."""

    name: str
    kind: type[OpenClient]
    settings: ApplicationSettings


def credential_of(key: Ed25519PrivateKey, user: str) -> str:
    now_s = int(time.time())
    return jwt.encode({"sub": user, "tenant": TENANT, "iat": now_s, "exp": now_s + _CREDENTIAL_S}, key, algorithm="EdDSA")


class Guarded:
    """The three applications, with a key of their own and the address of their webhook."""

    def __init__(self, folder: Path, webhook_port: int) -> None:
        self.key = SignedIn.key = Ed25519PrivateKey.generate()
        self.stranger = Ed25519PrivateKey.generate()  # whose signature counts nowhere
        self.webhook_port = webhook_port
        self._folder = folder
        self._public = folder / "users.pem"
        by_jwt = ApplicationSettings(authentication="jwt", jwt_keys=str(self._public), registrable=REGISTRABLE)
        asking = ApplicationSettings(
            authentication="jwt", jwt_keys=str(self._public), registrable=REGISTRABLE, authorization_webhook=self.webhook
        )
        self.guards = (
            Guard("open", OpenClient, ApplicationSettings()),
            Guard("JWT and patterns", SignedIn, by_jwt),
            Guard("JWT, patterns and a webhook", AskedFor, asking),
        )

    @property
    def webhook(self) -> str:
        return f"http://127.0.0.1:{self.webhook_port}/may-hear"

    def write(self) -> None:
        """The settings file of a service that is started in this folder, and the public key."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._public.write_bytes(self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        patterns = ", ".join(f'"{pattern}"' for pattern in REGISTRABLE)
        by_jwt = f'authentication = "jwt"\njwt_keys = "{self._public}"\nregistrable = [{patterns}]\n'
        (self._folder / "roskva.toml").write_text(
            f"[applications.{APPLICATION}]\n"
            f"[applications.{SignedIn.application}]\n{by_jwt}"
            f'[applications.{AskedFor.application}]\n{by_jwt}authorization_webhook = "{self.webhook}"\n'
        )

    @contextlib.asynccontextmanager
    async def answering(self) -> AsyncIterator[Callable[[], int]]:
        """The webhook, which allows everything; how often it was asked."""
        calls = 0

        async def allow(request: web.Request) -> web.Response:
            nonlocal calls
            calls += 1
            return web.json_response({"allowed": (await request.json())["objects"]})

        application = web.Application()
        application.add_routes([web.post("/may-hear", allow)])
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", self.webhook_port).start()
            yield lambda: calls
        finally:
            await runner.cleanup()
