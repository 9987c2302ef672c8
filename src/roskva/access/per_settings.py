"""What is made of an application's settings once, and used until they are read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from roskva.config import ApplicationSettings

_KEPT_MAX: Final = 10_000  # the oldest go first: those of applications that were read again since

T = TypeVar("T")


class PerSettings(Generic[T]):
    """By the object, and not by what it holds: that is compared in a moment, and a reload makes new ones."""

    def __init__(self, make: Callable[[ApplicationSettings], T]) -> None:
        self._make = make
        self._made: dict[int, tuple[ApplicationSettings, T]] = {}  # with the settings, so that no other object gets their id

    def of(self, settings: ApplicationSettings) -> T:
        made = self._made.get(id(settings))
        if made is None:
            made = self._made[id(settings)] = (settings, self._make(settings))
            if len(self._made) > _KEPT_MAX:
                del self._made[next(iter(self._made))]
        return made[1]
