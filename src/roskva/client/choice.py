"""Where a client connects next, and over which channel (docs/protocol.md, Which of them). Pure.

Of several addresses: three failures in a row, and the next one's turn comes. A failure is a connection that did not come about, on which
nothing was said, or that was cut off young. After a move the client stays for STAY_S, if it was answered there: to move may mean a new
handshake, and clients that all run to and fro help nobody. It never goes back by itself.

Of the channels: a WebSocket first. After two failures of it in a row, or one refusal (something answered, but does not upgrade),
long polls. That nobody accepts a connection says nothing about WebSockets, nor does a gateway that says goodbye. If long polls fail too,
nothing was learned, and both are tried in turn. If they work, the WebSocket is tried again beside them: soon, since the failures may have
been the service's, later after a refusal; each time that it fails the pause doubles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

AUTO: Final = "auto"
WEBSOCKET: Final = "websocket"
LONG_POLL: Final = "long-poll"
CARRIED: Final = "carried"  # over a channel of the application's own

URL_TRIES: Final = 3
WEBSOCKET_TRIES: Final = 2
YOUNG_S: Final = 60.0
STAY_S: Final = 180.0
RETURN_S: Final = 30.0
RETURN_REFUSED_S: Final = 300.0
RETURN_MAX_S: Final = 3_600.0
_SMEAR: Final = 0.25  # of the pauses, up or down, by chance: clients that lost their WebSockets together do not return together
_NEVER: Final = float("-inf")


class Failure(Enum):
    """Why a connection did not come about."""

    UNREACHABLE = "nobody accepted a connection"
    BROKEN = "it was accepted, but led nowhere"
    REFUSED = "what answered will not carry this channel"


@dataclass(frozen=True, slots=True)
class Attempt:
    url: int  # which of the addresses
    kind: str


class Choice:
    """`attempt` says what to try next. Tell what became of it: `failed`, or `ended` after it came about."""

    def __init__(self, urls: int, kind: str, random: Callable[[], float]) -> None:
        self._urls = urls
        self._kind = kind
        self._random = random  # from 0 to 1
        self._url = 0
        self._failures = 0  # in a row, here
        self._moved_at = _NEVER
        self._heard_here = False
        self._websocket_failures = 0  # in a row, here
        self._fallen_back = False  # to long polls
        self._return_at = _NEVER  # when they should give way to a WebSocket
        self._return_s = RETURN_S
        self._polls_work = False  # while the WebSocket does not

    def attempt(self, now: float) -> Attempt:
        if self._kind != AUTO:
            return Attempt(self._url, self._kind)
        polls = self._fallen_back and (now < self._return_at or not self._polls_work)
        return Attempt(self._url, LONG_POLL if polls else WEBSOCKET)

    def failed(self, now: float, attempt: Attempt, why: Failure) -> None:
        """It did not come about."""
        self._failures += 1
        if attempt.kind != WEBSOCKET:
            self._fallen_back = self._polls_work = False
        elif why is not Failure.UNREACHABLE:
            self._websocket_failures += WEBSOCKET_TRIES if why is Failure.REFUSED else 1
            if self._websocket_failures >= WEBSOCKET_TRIES:
                self._fall_back(now, why)
        settled = self._heard_here and now - self._moved_at < STAY_S
        if self._failures >= URL_TRIES and self._urls > 1 and not settled:
            self._move(now)

    def ended(self, now: float, attempt: Attempt, lived_s: float, heard: bool, cut: bool) -> None:
        """It came about, and is over. `heard`: the service said something over it; `cut`: nobody said goodbye."""
        self._heard_here = self._heard_here or heard
        self._polls_work = self._polls_work or (heard and attempt.kind == LONG_POLL)
        if heard and lived_s >= YOUNG_S:
            self._failures = 0
            if attempt.kind == WEBSOCKET:
                self._websocket_failures = 0
                self._polls_work = False
        elif cut or not heard:
            self.failed(now, attempt, Failure.BROKEN)
            if heard and attempt.kind == LONG_POLL and self._url == attempt.url:
                self._fallen_back = self._polls_work = True  # they work, if not for long

    def return_at(self) -> float | None:
        """When to try a WebSocket beside the long polls. None: never."""
        return self._return_at if self._kind == AUTO else None

    def return_failed(self, now: float, why: Failure) -> None:
        self._polls_work = True
        self._fall_back(now, why)

    def returned(self) -> Attempt:
        """The WebSocket that was tried beside the long polls came about."""
        self._fallen_back = False
        self._websocket_failures = WEBSOCKET_TRIES - 1  # it must show that it lasts
        return Attempt(self._url, WEBSOCKET)

    def _fall_back(self, now: float, why: Failure) -> None:
        if self._polls_work:
            self._return_s = min(2 * self._return_s, RETURN_MAX_S)
        else:
            self._return_s = RETURN_REFUSED_S if why is Failure.REFUSED else RETURN_S
        self._fallen_back = True
        self._return_at = now + self._return_s * (1.0 + _SMEAR * (2.0 * self._random() - 1.0))

    def _move(self, now: float) -> None:
        self._url = (self._url + 1) % self._urls
        self._moved_at = now
        self._heard_here = self._polls_work = self._fallen_back = False
        self._failures = self._websocket_failures = 0
