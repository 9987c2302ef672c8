"""All that decides about users, as one thing that a gateway gives to its Registrar; and whether an application's settings allow it to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from roskva.access.authorization import Authorization
from roskva.access.credentials import Credentials
from roskva.access.files import WatchedFile
from roskva.access.identity import Identity
from roskva.access.jwt_keys import open_keys
from roskva.access.patterns import compile_patterns
from roskva.access.webhooks import Webhooks, webhook_key
from roskva.config import ApplicationSettings
from roskva.errors import InvalidSetting


class Access:
    """Credentials and Authorization, with the same webhooks. One for a gateway."""

    def __init__(self, clock: Callable[[], float] = time.time, webhooks: Webhooks | None = None) -> None:
        self._credentials = Credentials(clock, webhooks)
        self._authorization = Authorization(self._credentials.webhooks, clock)

    async def close(self) -> None:
        await self._authorization.close()
        await self._credentials.close()

    async def identify(self, application: str, settings: ApplicationSettings, device: str, credential: str) -> Identity:
        return await self._credentials.identify(application, settings, device, credential)

    def is_revoked(self, settings: ApplicationSettings, identity: Identity) -> bool:
        return self._credentials.is_revoked(settings, identity)

    def known(self, application: str, settings: ApplicationSettings, identity: Identity, device: str, name: str) -> bool | None:
        return self._authorization.known(application, settings, identity, device, name)

    async def ask(
        self, application: str, settings: ApplicationSettings, identity: Identity, device: str, names: Sequence[str]
    ) -> dict[str, bool]:
        return await self._authorization.ask(application, settings, identity, device, names)

    def forget(self, application: str, user: str | None = None) -> None:
        self._authorization.forget(application, user)


def check_access(application: str, settings: ApplicationSettings, clock: Callable[[], float] = time.time) -> None:
    """For whoever reads the settings: raises InvalidSetting, with the place, for what could verify nobody. Reads files, calls nobody."""
    try:
        compile_patterns(settings.registrable)
        if settings.authentication == "jwt":
            open_keys(settings, clock)
        if settings.authentication == "webhook" and not settings.authentication_webhook:
            raise InvalidSetting("authentication is webhook, and authentication_webhook does not say which.")
        if settings.webhook_key_file:
            WatchedFile(settings.webhook_key_file, webhook_key, clock)
    except InvalidSetting as error:
        raise InvalidSetting(f"[applications.{application}]: {error.what}") from None
