"""How a client gets its token, and loses it (Thialfi 4.1.2). Pure.

Without a token `init` is repeated, each time with a new nonce: if several are answered, only the answer to the last one
counts, and that is the one which the server holds for valid. A token that the server refuses is kept as `prior` if the
server says so, else dropped. The first refusal is answered at once; refusals that follow without a sound message in between
are answered after a pause that doubles, so that two confused parties do not ask each other without end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from roskva.client.operations import pause_s
from roskva.errors import InvalidApplication, InvalidDevice, SessionSuperseded, UnknownApplication
from roskva.probes import reached
from roskva.protocol.messages import Config, Grant, Init, StartAnew

SUPERSEDED_AGAIN_S: Final = 60.0
_HOPELESS: Final = frozenset(error.code for error in (UnknownApplication, InvalidApplication, InvalidDevice))
_NEVER: Final = float("-inf")


class Refusal(Enum):
    NOT_OURS = "of an older token or nonce, or a repeat"
    HANDSHAKE = "handshake again; the client id may be kept"
    ANEW = "begin as a new client"
    TWO_OF_US = "superseded twice within a minute"


@dataclass(slots=True)
class Handshake:
    application: str
    device: str
    new_nonce: Callable[[], str]
    prior: str = ""
    token: str = ""
    granted_before: bool = False  # in this run
    due: float = _NEVER  # when `init` is sent (again)
    _nonce: str = ""  # of the init that waits for its answer
    _attempts: int = 0  # since the last sound message
    welcomed: bool = False  # whether this token's session has taken effect
    _superseded_at: float = _NEVER

    def init(self, now: float, config: Config, dice: float) -> Init:
        self._nonce = self.new_nonce()
        self.due = now + pause_s(config, self._attempts, dice)
        self._attempts += 1
        return Init(nonce=self._nonce, application=self.application, device=self.device, prior=self.prior or None)

    def answers(self, grant: Grant) -> bool:
        return bool(self._nonce) and grant.nonce == self._nonce

    def granted(self, token: str) -> None:
        self.token, self.prior, self._nonce = token, "", ""
        self.welcomed = False
        self.granted_before = True

    def hopeless(self, code: str) -> bool:
        """No patience helps: the application names something that does not exist. Once it has worked, we keep trying."""
        return not self.granted_before and code in _HOPELESS

    def again_at(self, until: float) -> None:
        """The server had no room and said until when."""
        if self._nonce:
            self.due = min(self.due, until)

    def sound(self, welcomed: bool) -> None:
        """The server speaks to our token. `welcomed`: its Registrar does, and so the session has taken effect."""
        self._attempts = 0
        self.welcomed = self.welcomed or welcomed

    def refused(self, now: float, token: str, refusal: StartAnew, config: Config, dice: float) -> Refusal:
        """`token` is the message's. While an init waits, only what names its nonce counts: the rest is a repeat."""
        of_init = bool(self._nonce) and refusal.nonce == self._nonce
        of_token = bool(self.token) and token == self.token
        if not of_init and not of_token:
            return Refusal.NOT_OURS
        # A session that never took effect was overtaken by a repeat of our own init, not by another client with our state.
        if refusal.code == SessionSuperseded.code and not self.welcomed:
            reached("client: overtaken by a repeat of its own init")
        if refusal.code == SessionSuperseded.code and self.welcomed:
            if now - self._superseded_at < SUPERSEDED_AGAIN_S:
                return Refusal.TWO_OF_US
            self._superseded_at = now
        self.prior = (self.token or self.prior) if refusal.keep else ""
        self.token = self._nonce = ""
        self.due = _NEVER if self._attempts <= 1 else now + pause_s(config, self._attempts, dice)
        return Refusal.HANDSHAKE if refusal.keep else Refusal.ANEW
