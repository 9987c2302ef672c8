"""Keepalives of lines that carry many clients: one stands for every session that is confirmed on the line (docs/decisions/0032).

It says of each: nothing has changed since you were last spoken to over this line. So whatever changed without a word is told first, to
each by itself: that work is unsettled, a summary that is another, what the line had to drop. All of it is proportional to what changed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from roskva.config import Settings
from roskva.registrar.sessions import Session

if TYPE_CHECKING:
    from roskva.registrar.service import Registrar
    from roskva.registrar.sessions import Channel, Keeper, OnLine

_TOLD_PER_TURN: Final = 200  # sessions in one turn of the event loop


class Lines:
    def __init__(self, registrar: Registrar, settings: Settings) -> None:
        self._registrar = registrar
        self._settings = settings
        self._due_s: dict[Keeper, float] = {}
        self._changed: dict[Session, None] = {}  # whose summary is another than they were told, maybe
        self._settled: dict[Keeper, list[OnLine]] = {}  # whom to tell together

    def confirmed(self, session: Session) -> None:
        """It is online here, and its line keeps it alive."""
        keeper, channel = session.keeper, session.channel
        if keeper is not None:
            channel.confirmed()  # type: ignore[union-attr]  # only a channel on a line has a keeper
            self._due_s.setdefault(keeper, session.heard_s + self._every_s())

    def changed(self, session: Session) -> None:
        if session.keeper is not None and self._registrar.sessions.get(session.client) is session:
            self._changed[session] = None

    def spoken_to(self, session: Session) -> None:
        """Whatever has changed, it was just told."""
        if self._changed:
            self._changed.pop(session, None)

    def settles(self, session: Session) -> bool:
        """Whether its line tells it that all is settled, together with others, and `flush` is owed. Else it is spoken to."""
        keeper = session.keeper
        if keeper is None or session in self._changed:
            return False
        self._settled.setdefault(keeper, []).append(cast("OnLine", session.channel))
        session.told_unsettled = 0
        return True

    def flush(self) -> None:
        settled, self._settled = self._settled, {}
        for keeper, channels in settled.items():
            keeper.tell_settled(channels)

    def left(self, session: Session) -> None:
        """It is not online here any more: the line must not stand for it."""
        if session.keeper is not None:
            self._changed.pop(session, None)
            session.channel.unconfirmed()  # type: ignore[union-attr]  # as above

    def _every_s(self) -> float:
        """A line has clients of any application."""
        return min((application.keepalive_s for application in self._settings.applications.values()), default=1.0)

    async def keep_alive(self, now_s: float) -> None:
        for keeper in [keeper for keeper in self._due_s if keeper.closed]:
            del self._due_s[keeper]
        due = [keeper for keeper, due_s in self._due_s.items() if due_s <= now_s]
        if not due:
            return
        await self._tell_changed()
        for keeper in due:
            self._due_s[keeper] = now_s + self._every_s()
            for turn, channel in enumerate(keeper.take_missed(), 1):
                self._tell_again(channel)
                if turn % _TOLD_PER_TURN == 0:
                    await asyncio.sleep(0)
            keeper.keep_alive()

    async def _tell_changed(self) -> None:
        """Those who think that all is settled, and it is not; and those whose summary changed. Of any line, due or not."""
        registrar = self._registrar
        changed, self._changed = self._changed, {}
        pending = (registrar.sessions.get(client) for client in registrar.rounds.pending)
        owed = [one for one in (*registrar.unacknowledged.sessions, *pending) if one is not None and one.keeper is not None]
        for session in owed:
            if session.unsettled and not session.told_unsettled:
                changed[session] = None
        try:
            for turn, session in enumerate(list(changed), 1):
                del changed[session]
                if registrar.sessions.get(session.client) is session:
                    registrar.speak(session)
                if turn % _TOLD_PER_TURN == 0:
                    await asyncio.sleep(0)
        finally:
            self._changed.update(changed)  # after a failure, those who were not told yet

    def _tell_again(self, channel: OnLine) -> None:
        session = channel.session
        if isinstance(session, Session) and session.keeper is not None and self._registrar.speaks(session, cast("Channel", channel)):
            channel.confirmed()
            self._registrar.speak(session)
        else:
            channel.unconfirmed()
