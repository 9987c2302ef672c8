"""Handlers of single objects: who is called, and what each has still to deal with. Imports nothing but actions.

What was shown and neither acknowledged nor given back is taken to be still at work, and is not shown again in this run. So whoever ends a
registration must know what is at work: it is given back, and told again to whoever registers next. A handler that is released leaves its
registration as it is; what it had to deal with, and what comes, is kept for the next handler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from roskva.client.actions import Notification

Handler = Callable[[Notification], None]
Refused = Callable[[bytes, str, str], None]  # the object's name, the code and the message of the service


@dataclass(slots=True)
class _Handling:
    handler: Handler | None  # none: released, and not yet taken by another
    refused: Refused | None = None
    open: dict[bool, Notification] = field(default_factory=dict)  # not dealt with: at most one unknown and one version


class Handlers:
    def __init__(self) -> None:
        self._handlings: dict[bytes, _Handling] = {}
        self._in_callbacks: dict[bytes, Notification] = {}  # callbacks are everybody's, and called one at a time

    def __contains__(self, name: object) -> bool:
        return name in self._handlings

    def may_take(self, name: bytes, handler: Handler) -> bool:
        """An object that is registered: it is this handler's, or was released."""
        handling = self._handlings.get(name)
        return handling is not None and (handling.handler is None or handling.handler == handler)

    def take(self, name: bytes, handler: Handler | None, refused: Refused | None = None) -> list[Notification]:
        """It is registered (none: for loops and callbacks). Answers what the one before left to be dealt with."""
        known = self._handlings.get(name)
        if handler is not None and (known is None or known.handler != handler):
            self._handlings[name] = _Handling(handler, refused)
        elif handler is None and known is not None and known.handler is None:
            del self._handlings[name]
        else:
            return []
        return [] if known is None else list(known.open.values())

    def release(self, name: bytes) -> None:
        if name in self._handlings:
            self._handlings[name].handler = self._handlings[name].refused = None

    def who_hears_of_a_refusal(self, name: bytes) -> Refused | None:
        handling = self._handlings.get(name)
        return None if handling is None else handling.refused

    def drop(self, name: bytes) -> list[Notification]:
        """It is unregistered. Answers what nobody has dealt with."""
        handling, in_callback = self._handlings.pop(name, None), self._in_callbacks.pop(name, None)
        return ([] if handling is None else list(handling.open.values())) + ([] if in_callback is None else [in_callback])

    def tell(self, notification: Notification) -> bool:
        """Whether it is the business of a handler. Raises what the handler raises."""
        handling = self._handlings.get(notification.name)
        if handling is None:
            return False
        handling.open[notification.unknown] = notification
        if handling.handler is not None:
            handling.handler(notification)
        return True

    def dealt_with(self, notification: Notification) -> None:
        handling = self._handlings.get(notification.name)
        if handling is not None and handling.open.get(notification.unknown) == notification:
            del handling.open[notification.unknown]

    def callback_begins(self, notification: Notification) -> None:
        self._in_callbacks[notification.name] = notification

    def callback_ends(self, notification: Notification) -> bool:
        """Whether it was still the callback's to deal with: not if the object was unregistered meanwhile."""
        return self._in_callbacks.pop(notification.name, None) is notification
