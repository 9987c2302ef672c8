"""The checker of intervals between notifications (`registrar/pacing.py`): told of everything that a Registrar says, when it says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from roskva.model import name_from_text, object_key
from roskva.protocol.messages import Notify
from roskva.simulation.checkers import Checker

if TYPE_CHECKING:
    from roskva.registrar.service import Registrar
    from roskva.registrar.sessions import Session
    from roskva.simulation.world import World

_ROOM_MIN: Final = 100  # intervals; with less, some notifications begin none
_ROUNDING_S: Final = 1e-6


class _Sent(NamedTuple):
    version: int
    time_s: float


class OncePerInterval(Checker):
    """No session is sent two new versions of an object within its interval. Repeats, unknowns, and what a registration yields, aside."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sent: dict[tuple[Session, str, int, str], _Sent] = {}

    def said(self, registrar: Registrar, session: Session, notifications: Sequence[Notify]) -> None:
        for one in notifications:
            now_s = self._world.loop.time()
            if one.version is None:
                continue
            version = int(one.version)
            which = (session, one.object, one.epoch, one.seqno)
            before = self._sent.get(which)
            if before is not None and version <= before.version:
                continue
            if before is not None and now_s - before.time_s < self._length_s(session, one) - _ROUNDING_S:
                self._twice(registrar, session, one, f"{before.version} and {version} within {now_s - before.time_s:.3f} s")
                now_s = before.time_s
            self._sent[which] = _Sent(version, now_s)

    def _twice(self, registrar: Registrar, session: Session, one: Notify, what: str) -> None:
        row = registrar.rows.peek(session.client)
        yielded = row is None or row.is_pending(object_key("demo", one.epoch, name_from_text(one.object)), int(one.seqno))
        if not yielded and self._world.knobs.outstanding_max >= _ROOM_MIN:
            self._world.fail(self.broken(f"{session.device} was sent {one.object} {what}"))

    def _length_s(self, session: Session, one: Notify) -> float:
        asked_ms = (session.asked_ms or {}).get(object_key("demo", one.epoch, name_from_text(one.object)), 0)
        return max(self._world.knobs.notify_interval_ms, asked_ms) / 1000.0
