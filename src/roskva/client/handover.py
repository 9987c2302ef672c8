"""Which notifications reach the application, and what its acknowledgements name (Thialfi 3.3, 4.1.4, 4.1.6). Pure.

Theory of operation. The server repeats a notification until it is acknowledged, and channels repeat and reorder. The
application is to see each (epoch, version) of an object once per run, never a lower one after a higher one, and each
unknown once per session and seqno. Per object we keep three marks that only grow:

    acknowledged <= handed over <= highest ever shown

    delivered version                           what happens
    up to acknowledged                          acknowledged again, silently: our acknowledgement was lost
    above it, up to handed over                 nothing: the application is still at work on it, and will acknowledge
    above handed over, not below the highest    handed over
    else (given back once, and outdated since)  nothing

Handed over falls back to acknowledged when the application gives a notification back: its next redelivery is shown again.
Unknown has marks of its own, over seqnos: an acknowledged version says nothing about an unknown, which may stand for a
later version that was lost. An acknowledged unknown says that the object was fetched, so whatever was shown before it is acknowledged too:
the service may have lost all but an older version, which would else be delivered for ever. An unknown of a new epoch lifts the version
marks into that epoch.

Epochs only rise, unless the service has lost everything and counts from below again: it says its epoch at every handshake, and marks of
epochs above it would hide all that it tells from then on. They go, and a version may be seen twice.

The marks outlive an unregistration: an application that registers again in the same run is not told again what it has been
told. One that forgot the object when it unregistered says so (`forget`), and is told everything anew. Marks of objects that
are no longer registered are bounded: beyond the bound the oldest go, and a version may then be seen twice, which is
allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from roskva.client.actions import Notification
from roskva.model import EPOCH_MAX, name_to_text
from roskva.probes import reached
from roskva.protocol.messages import Ack

Key = tuple[int, int]  # (epoch, version): how versions compare
NOTHING_YET: Final[Key] = (-1, -1)
RETIRED_MAX: Final = 100_000  # marks of unregistered objects; about 20 MB at worst
_DELIVERIES_MAX: Final = 4  # registrations of one object with an open delivery; more than two need lost messages


class Verdict(Enum):
    HAND_OVER = "hand over"
    ACKNOWLEDGE = "acknowledge again"
    NOTHING = "nothing"


@dataclass(slots=True)
class Marks:
    handed: Key = NOTHING_YET
    acknowledged: Key = NOTHING_YET
    highest: Key = NOTHING_YET
    deliveries: dict[int, Key] = field(default_factory=dict)  # open ones: seqno -> the highest version that came under it
    unknown_handed: int = -1
    unknown_acknowledged: int = -1
    covered: Key = NOTHING_YET  # the highest shown when the last unknown was handed over: whoever fetches after that has it


@dataclass(slots=True)
class Handover:
    session: int = 0
    epoch: int = EPOCH_MAX  # the service's, by its last word; before that every one is possible
    _marks: dict[bytes, Marks] = field(default_factory=dict)
    _retired: dict[bytes, Marks] = field(default_factory=dict)  # of objects not registered, the oldest first

    def delivered(self, notification: Notification) -> Verdict:
        marks = self._marks.setdefault(notification.name, Marks())
        self.epoch = max(self.epoch, notification.epoch)
        if notification.version is None:
            return _unknown_delivered(marks, notification)
        key = (notification.epoch, notification.version)
        if key <= marks.acknowledged:
            reached("client: told again of what it acknowledged")
            return Verdict.ACKNOWLEDGE
        marks.deliveries[notification.seqno] = max(key, marks.deliveries.get(notification.seqno, key))
        if len(marks.deliveries) > _DELIVERIES_MAX:
            del marks.deliveries[min(marks.deliveries)]
        if key <= marks.handed or key < marks.highest:
            reached("client: an older version came late")
            return Verdict.NOTHING
        marks.handed = marks.highest = key
        return Verdict.HAND_OVER

    def acknowledged(self, notification: Notification) -> list[Ack]:
        """The application is done with it. Names every delivery that this covers, exactly as it came."""
        marks = self._marks.get(notification.name) or self._retired.get(notification.name)
        if marks is None:
            return []
        current = notification.session == self.session
        if notification.version is None:
            if not current or notification.seqno > marks.unknown_handed:
                return []
            marks.unknown_acknowledged = max(marks.unknown_acknowledged, notification.seqno)
            marks.acknowledged = max(marks.acknowledged, (notification.epoch, -1), marks.covered)
            marks.handed = max(marks.handed, marks.acknowledged)
            return [ack_of(notification)]
        key = (notification.epoch, notification.version)
        if key > marks.highest:
            return []  # never shown: nobody may acknowledge what was not delivered
        marks.acknowledged = max(marks.acknowledged, key)
        marks.handed = max(marks.handed, key)
        covered = [(seqno, came) for seqno, came in marks.deliveries.items() if came <= key]
        for seqno, _ in covered:
            del marks.deliveries[seqno]
        if not covered and current:
            return [ack_of(notification)]  # a higher version came under the same seqno meanwhile, or it is acknowledged twice
        return [_ack(notification.name, seqno, came) for seqno, came in covered]

    def give_back(self, notification: Notification) -> None:
        """The application did not take it: show it again when it is delivered again, be it after another registration."""
        marks = self._marks.get(notification.name) or self._retired.get(notification.name)
        if marks is None:
            return
        if notification.version is None:
            if notification.session == self.session and marks.unknown_handed == notification.seqno:
                marks.unknown_handed = marks.unknown_acknowledged
        elif marks.handed == (notification.epoch, notification.version):
            marks.handed = marks.acknowledged

    def registered(self, name: bytes, held: Key | None, again: bool) -> None:
        """The application wishes for it (`again`: it did so before), and states what it holds.

        What is held counts as acknowledged. A new registration that states less than was shown wants to be told again.
        """
        if name in self._retired:
            self._marks[name] = self._retired.pop(name)
        if held is None or held[0] > self.epoch:
            return
        marks = self._marks.setdefault(name, Marks())
        if not again and held < marks.acknowledged:
            marks.handed = marks.acknowledged = held
        else:
            marks.acknowledged = max(marks.acknowledged, held)
            marks.handed = max(marks.handed, held)
            marks.highest = max(marks.highest, held)

    def unregistered(self, name: bytes, forget: bool) -> None:
        marks = self._marks.pop(name, None)
        if forget:
            self._retired.pop(name, None)
        elif marks is not None:
            self._retired[name] = marks
            if len(self._retired) > RETIRED_MAX:
                del self._retired[next(iter(self._retired))]

    def counts_in(self, epoch: int) -> None:
        """The service's epoch, by its own word at a handshake."""
        self.epoch = epoch
        for marks in (*self._marks.values(), *self._retired.values()):
            if max(marks.highest, marks.acknowledged)[0] > epoch:
                reached("client: the service counts from below again")
                marks.handed = marks.acknowledged = marks.highest = marks.covered = NOTHING_YET
                marks.deliveries.clear()

    def new_session(self) -> None:
        """The server may know us by a new client id, whose seqnos begin again and may repeat: an old mark must not hide a new
        unknown. Versions are the object's, whoever asks: their marks stay."""
        self.session += 1
        for marks in (*self._marks.values(), *self._retired.values()):
            marks.deliveries.clear()
            marks.unknown_handed = marks.unknown_acknowledged = -1


def _unknown_delivered(marks: Marks, notification: Notification) -> Verdict:
    if notification.seqno <= marks.unknown_acknowledged:
        return Verdict.ACKNOWLEDGE
    if notification.seqno <= marks.unknown_handed:
        return Verdict.NOTHING
    marks.unknown_handed = notification.seqno
    marks.covered = marks.highest
    marks.highest = max(marks.highest, (notification.epoch, -1))
    return Verdict.HAND_OVER


def ack_of(notification: Notification) -> Ack:
    if notification.version is None:
        return Ack(object=notification.object, seqno=str(notification.seqno), epoch=notification.epoch)
    return _ack(notification.name, notification.seqno, (notification.epoch, notification.version))


def _ack(name: bytes, seqno: int, key: Key) -> Ack:
    return Ack(object=name_to_text(name), seqno=str(seqno), version=str(key[1]), epoch=key[0])
