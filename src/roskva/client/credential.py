"""Who the client's user is: which messages say so, and what the server's answer changes (docs/protocol.md, Users and credentials). Pure.

Theory of operation. There is one text, or none. It goes with every `init`, with the first message over a connection, and with the next
message after it was changed or the server wanted it. The server's word decides the rest:

    good for a while    before that ends, once, another is asked for (REFRESH)
    wanted              the server did nothing with a message, and tells nothing. All is held back for a while (`held_until`); then whatever
                        is due is sent, at least one message, the first of them with the text; and so on, with pauses that double

Messages that were sent together are refused together: that counts once. One refusal is no news to the application: the server has not seen
the text that is held, because a message was lost or another Registrar has taken over. Then it is sent again without much ado, and the
shell is told only if it is still not seen after a pause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from roskva.client.operations import pause_s
from roskva.errors import CredentialRequired, InvalidSetting
from roskva.protocol.messages import Config

REFRESH: Final = "credential-refresh"  # why another is asked for, though nothing was refused
CHARACTERS_MAX: Final = 8_192
_REFRESH_FROM: Final = 0.7  # of the time for which it is good
_REFRESH_UP_TO: Final = 0.9
_NEVER: Final = float("-inf")
_NOT_YET: Final = float("inf")


def check_credential(text: object) -> str:
    """It is never shown: an error may end up in a log."""
    if not isinstance(text, str) or len(text) > CHARACTERS_MAX:
        raise InvalidSetting(f"A credential is a text of at most {CHARACTERS_MAX} characters.")
    return text


@dataclass(slots=True)
class Credential:
    random: Callable[[], float]
    text: str = ""
    due: bool = False  # the next message carries it
    wanted: str = ""  # why the server wants one; empty: it does not
    refresh_at: float = _NOT_YET
    _retry_at: float = _NEVER
    _expires_at: float = _NOT_YET
    _tried: bool = False  # since it was wanted, something was sent
    _attempts: int = 0  # since one was accepted
    _sent_at: float = _NEVER

    @property
    def held_until(self) -> float:
        """Nothing is sent before."""
        return self._retry_at if self.wanted else _NEVER

    def stale(self, now: float) -> bool:
        """Another would be better, as far as is known."""
        return not self.text or bool(self.wanted) or now >= self._expires_at

    def connected(self) -> None:
        self.due = bool(self.text)

    def use(self, text: str) -> bool:
        """Whether there is something to say at once. What the server refused it refuses again: that has its own pauses."""
        check_credential(text)
        if text == self.text and (self.wanted or not text):
            return False
        if text != self.text:
            self._expires_at = _NOT_YET
        self.text, self.due = text, bool(text)
        self._retry_at = _NEVER
        return self.due

    def turn(self) -> None:
        """It is wanted, and the pause is over."""
        self.due = bool(self.text)

    def take(self, now: float, config: Config, init: bool = False) -> str:
        """What goes with the message that is sent now."""
        if self.wanted and self._retry_at <= now:
            self._tried = True
            self._pause(now, config)
        if not (self.due or init):
            return ""
        self.due = False
        self._sent_at = now
        return self.text

    def refused(self, now: float, code: str, config: Config) -> bool:
        """Whether the shell is to be told."""
        before, self.wanted = self.wanted, code or CredentialRequired.code
        unseen = self.wanted == CredentialRequired.code and bool(self.text) and self._attempts < 2
        tried, self._tried = self._tried, False
        if before:
            return (tried or self.wanted != before) and not unseen
        self.refresh_at = _NOT_YET
        if unseen and now - self._sent_at >= config.retry_min_s:
            self._retry_at = _NEVER
        else:
            self._pause(now, config)
        return not unseen

    def _pause(self, now: float, config: Config) -> None:
        self._retry_at = now + pause_s(config, self._attempts, self.random())
        self._attempts += 1

    def accepted(self, now: float, good_s: float, config: Config) -> bool:
        """Whether it was wanted."""
        was_wanted, self.wanted = bool(self.wanted), ""
        self._attempts = 0
        self._expires_at = self.refresh_at = _NOT_YET
        if good_s > 0:
            self._expires_at = now + good_s
            part = _REFRESH_FROM + (_REFRESH_UP_TO - _REFRESH_FROM) * self.random()
            self.refresh_at = now + max(config.retry_min_s, good_s * part)
        return was_wanted

    def refreshes(self, now: float) -> bool:
        """Whether another is asked for now: once for each that was accepted."""
        if now < self.refresh_at:
            return False
        self.refresh_at = _NOT_YET
        return True
