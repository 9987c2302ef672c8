"""The application's callbacks, called one at a time in the order of events (Thialfi, Figure 2: NotificationListener).

They may be plain or `async`. What waits is bounded by the number of objects: a later event on an object takes the place of an
earlier one.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from roskva.client.actions import (
    Action,
    CredentialWanted,
    Notification,
    RegistrationFailed,
    ReissueRegistrations,
    Reported,
    StatusChanged,
)
from roskva.client.mailbox import Mailbox
from roskva.model import name_to_text

log = logging.getLogger(__name__)

Callback = Callable[..., Awaitable[None] | None]


@dataclass(slots=True)
class Callbacks:
    on_notify: Callback | None = None
    on_unknown: Callback | None = None
    on_status: Callback | None = None
    on_failure: Callback | None = None
    on_reissue: Callback | None = None
    on_credential_refused: Callback | None = None
    _events: Mailbox[Callable[[], Awaitable[None]]] = field(default_factory=Mailbox)

    def __bool__(self) -> bool:
        return any((self.on_notify, self.on_unknown, self.on_status, self.on_failure, self.on_reissue, self.on_credential_refused))

    def of(self, notification: Notification) -> Callback | None:
        """Who is to be called for it; without a callback of their own, unknowns are the business of `on_notify`."""
        return (self.on_unknown or self.on_notify) if notification.unknown else self.on_notify

    def notify(self, notification: Notification, hand_over: Callable[[], Awaitable[None]]) -> None:
        self._events.put(key_of(notification), hand_over)

    def tell(self, action: Action) -> None:
        if isinstance(action, RegistrationFailed):
            log.warning("%s is not registered: %s %s", name_to_text(action.name), action.code, action.message)
        elif isinstance(action, Reported):
            log.warning("the service refused a message: %s %s", action.code, action.message)
        if isinstance(action, StatusChanged) and (on_status := self.on_status) is not None:
            changed = (name_to_text(action.name), action.registered)
            self._events.put(("status", action.name), lambda: call(on_status, *changed))
        elif isinstance(action, RegistrationFailed) and (on_failure := self.on_failure) is not None:
            failed = (name_to_text(action.name), action.transient, action.code, action.message)
            self._events.put(("failure", action.name), lambda: call(on_failure, *failed))
        elif isinstance(action, ReissueRegistrations) and (on_reissue := self.on_reissue) is not None:
            self._events.put(("reissue", b""), lambda: call(on_reissue))
        elif isinstance(action, CredentialWanted) and (on_refused := self.on_credential_refused) is not None:
            refused = (action.code, action.message)
            self._events.put(("credential", action.code.encode()), lambda: call(on_refused, *refused))

    async def run(self) -> None:
        while (event := await self._events.take()) is not None:
            try:
                await event()
            except Exception:
                log.exception("a callback of the application failed")

    def close(self) -> None:
        self._events.close()


def key_of(notification: Notification) -> tuple[str, bytes]:
    # Apart: an unknown may stand for a later version than the one known, so neither may take the other's place.
    return ("unknown" if notification.unknown else "version", notification.name)


def keys_of(name: bytes) -> tuple[tuple[str, bytes], ...]:
    return ("unknown", name), ("version", name)


async def call(callback: Callback, *arguments: object) -> None:
    result = callback(*arguments)
    if inspect.isawaitable(result):
        await result
