"""Where the credential of a client's user comes from: a text, or a function of the application's (docs/protocol.md, Users and credentials).

Such a provider is called at the start, before a connection if what it gave was refused or has ended, and when the core asks for another;
one call at a time, and with pauses that double until one is accepted. What it answers is never logged, nor what it raises: that may hold a
secret, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from roskva.client.actions import CredentialAccepted, CredentialWanted
from roskva.client.core import ClientCore
from roskva.client.credential import REFRESH, check_credential
from roskva.client.operations import pause_s
from roskva.errors import InvalidSetting

log = logging.getLogger(__name__)

Provider = Callable[[], str | Awaitable[str]]

CALL_S: Final = 30.0  # a provider that takes longer failed
BEFORE_CONNECTING_S: Final = 10.0  # a connection waits at most so long for one


class Credentials:
    def __init__(self, given: str | Provider | None) -> None:
        if given is not None and not isinstance(given, str) and not callable(given):
            raise InvalidSetting("A credential is a text, or a function that answers one.")
        self.text = check_credential(given) if isinstance(given, str) else ""
        self.problem = ""  # the code by which the service refused the last one
        self._provider = given if callable(given) else None
        self._asked = asyncio.Event()
        self._answered = asyncio.Event()  # no call is under way that a connection should wait for
        self._answered.set()
        self._calls = 0  # since one was accepted
        self._refusals = 0
        self._told: set[str] = set()  # codes that the application knows
        if self._provider is not None:
            self._ask()

    @property
    def provided(self) -> bool:
        return self._provider is not None

    def accepted(self, action: CredentialAccepted) -> None:
        self.problem = ""
        self._calls = self._refusals = 0
        self._told.clear()

    def wanted(self, action: CredentialWanted) -> bool:
        """Whether the application is to be told: once of each code, and not before its provider had a chance to mend it."""
        self._ask()
        if action.code == REFRESH:
            return False
        self.problem = action.code
        self._refusals += 1
        if action.code in self._told or (self.provided and self._refusals < 2):
            return False
        self._told.add(action.code)
        log.warning("the service refuses this client's user: %s %s", action.code, action.message)
        return True

    def _ask(self) -> None:
        if self._provider is not None:
            self._asked.set()
            if not self._calls:
                self._answered.clear()

    async def before_connecting(self, core: ClientCore, now: float) -> None:
        if self._provider is None:
            return
        if core.credential.stale(now):
            self._ask()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._answered.wait(), BEFORE_CONNECTING_S)

    async def provide(self, core: ClientCore, use: Callable[[str], None], random: Callable[[], float]) -> None:
        """Call the provider whenever it is asked for, for ever."""
        assert self._provider is not None
        while True:
            await self._asked.wait()
            if self._calls:
                await asyncio.sleep(pause_s(core.config, self._calls - 1, random()))
            self._asked.clear()
            self._calls += 1
            try:
                async with asyncio.timeout(CALL_S):
                    answer = self._provider()
                    use(check_credential(await answer if inspect.isawaitable(answer) else answer))
            except Exception as error:
                log.warning("the provider of the credential failed with %s; it is asked again", type(error).__name__)
                self._asked.set()
            finally:
                self._answered.set()
