"""Which publisher owns a flow, when several have the same data (Wormhole 3.3.2, Figure 3).

Pure. Publishers do not talk to each other: each beats its counter beside the datamarkers, with what of its log it can read, and watches
those of its peers. A peer whose counter has stood still for `takeover_s`, on the observer's own clock, is dead; that takes more than two
looks, since a counter that began anew may be met at the number that it had before. One that lives may be unable: its datastore does not
answer. One that is able may still be unfit for a flow: its log begins after the flow's datamarker, because its slot was made later, or is
of an earlier history, because it is a primary of before. If none is fit, all that are able count: what is gone is then told as lost.

`decide` is asked about every flow, now and then, by every publisher, and answers what that one has to do; since a take raises the epoch in
a single step, two that decide the same cannot both win.

    nobody owns it, or its owner released it, or its owner is dead:   the first that is fit takes it
    I own it, and one that is before me in the order is fit:          I stop sending, store the datamarker, release it
    I own it, I am not fit, and any other is:                         the same
    I own it under another epoch than the one that is written:        somebody took it from me: I stop
    it is written as mine, and I have only just been started:         I take it again, or release it if I am not fit
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from roskva.capture.positions import Position

TAKEOVER_S: Final = 8.0  # with beats and looks a second apart, a flow whose owner dies goes on after 7 to 10 s
STEADY_S: Final = 5.0  # that one who came back has to live before flows go back to it, so that one that keeps dying gets none
UNSEEN_SHARE: Final = 0.5  # of takeover_s, which the time between two looks may count for at most


class FlowName(NamedTuple):
    """A flow is all updates of a shard on their way to an application."""

    application: str
    shard: int

    def __str__(self) -> str:
        return f"{self.application}/{self.shard}"


class Record(NamedTuple):
    """What is kept of a flow."""

    datamarker: Position | None  # None: it was never said where it begins
    epoch: int
    owner: str  # the name of a publisher
    released: bool  # its owner has stopped, and stored all there was to store: another may go on


class Peer(NamedTuple):
    """A publisher, as the settings name it."""

    name: str
    region: str = ""


class Duty(Enum):
    NOTHING = "nothing"
    TAKE = "take"  # under the next epoch; then begin at the datamarker
    KEEP = "keep"
    HAND_OVER = "hand over"  # stop sending, wait for what is under way, store the datamarker, release
    STOP = "stop"  # at once: another one owns it
    RELEASE = "release"  # what I do not hold, though it is written as mine


class Reach(NamedTuple):
    """What of the log a publisher can read."""

    oldest: Position  # all after it
    history: int  # of the log's end

    def has(self, datamarker: Position) -> bool:
        """All that comes after the datamarker, now or when this replica has caught up."""
        return self.oldest <= datamarker and datamarker.history <= self.history


def order_of(peers: Sequence[Peer], region: str = "", noted: Sequence[str] = ()) -> tuple[str, ...]:
    """Primary first, then the secondaries; those of the flow's region before all others, and before these the ones that an operator has
    named, in their order. A peer that he did not know, since it came later, is not left out: it may be the only one that lives.
    """
    near = [*noted, *(peer.name for peer in peers if region and peer.region == region and peer.name not in noted)]
    return (*near, *(peer.name for peer in peers if peer.name not in near))


def fit_for(record: Record | None, able: Mapping[str, Reach]) -> frozenset[str]:
    """Of those that can read, who can go on with this flow and skip nothing; all of them, if none can."""
    if record is None or record.datamarker is None:
        return frozenset(able)
    return frozenset(name for name, reach in able.items() if reach.has(record.datamarker)) or frozenset(able)


def decide(
    me: str,
    held_epoch: int,
    record: Record | None,
    order: Sequence[str],
    live: Collection[str],
    fit: Collection[str],
    steady: Collection[str],
) -> Duty:
    """What I have to do about a flow of which this is written. `held_epoch`: the one under which I own it, 0 if I do not.

    `live` are those whose counter moves, `fit` those of them that can go on with this flow, `steady` those that have been able for a
    while.
    """
    if held_epoch and (record is None or record.epoch != held_epoch or record.owner != me):
        return Duty.STOP
    if held_epoch:
        better = order[: order.index(me)] if me in order and me in fit else [peer for peer in order if peer != me]
        return Duty.HAND_OVER if any(peer in steady and peer in fit for peer in better) else Duty.KEEP
    if record is not None and record.owner == me and not record.released:
        # Mine before I was started anew: whoever is before me waits until I release it.
        return Duty.TAKE if me in fit else Duty.RELEASE
    if record is not None and not record.released and record.owner in live:
        return Duty.NOTHING  # it releases the flow by itself as soon as it sees us before it
    first = next((peer for peer in order if peer in fit), None)
    return Duty.TAKE if first == me else Duty.NOTHING


@dataclass(slots=True)
class _Observed:
    counter: int
    moved_s: float
    since_s: float = float("inf")  # since when it has lived, and been able, without a break; infinite: it was not seen to yet
    able: bool = True


class Liveness:
    """What one observer knows of its peers, from counters, what they say of themselves, and its own clock."""

    def __init__(self, me: str, takeover_s: float = TAKEOVER_S, steady_s: float = STEADY_S) -> None:
        self.me = me
        self.takeover_s = takeover_s
        self.steady_s = steady_s
        self._observed: dict[str, _Observed] = {}
        self._now_s = 0.0

    def observe(self, counters: Mapping[str, int], able: Collection[str], now_s: float) -> None:
        """Take in what was read. A peer that is not there any more has left.

        What passes between two looks counts for no more than half of `takeover_s`. We may not have reached the place for long, and the
        peer may have left, and begun anew, or its counter may have gone back with a server that was lost: that it has the same number now
        is chance then, and the next look tells.
        """
        unseen_s = max(0.0, now_s - self._now_s - UNSEEN_SHARE * self.takeover_s)
        self._now_s = now_s
        for name in self._observed.keys() - counters.keys():
            del self._observed[name]
        for name, counter in counters.items():
            seen = self._observed.get(name)
            if seen is None:
                # A counter may be left over from one that died long ago: it must move before it counts as life returned.
                self._observed[name] = _Observed(counter, now_s, able=name in able)
                continue
            if counter != seen.counter:
                if seen.since_s > now_s or now_s - seen.moved_s >= self.takeover_s:
                    seen.since_s = now_s
                seen.counter, seen.moved_s = counter, now_s
            elif unseen_s:
                seen.moved_s += unseen_s
                seen.since_s = float("inf")  # nobody knows: it must move again
            if not seen.able and name in able:
                seen.since_s = now_s
            seen.able = name in able

    @property
    def live(self) -> frozenset[str]:
        """Also those that were not seen to move yet: whoever comes up waits as long for the others as everybody does."""
        return frozenset(name for name, seen in self._observed.items() if self._lives(seen)) | {self.me}

    @property
    def able(self) -> frozenset[str]:
        return frozenset(name for name, seen in self._observed.items() if self._lives(seen) and seen.able)

    @property
    def steady(self) -> frozenset[str]:
        return frozenset(name for name in self.able if self._now_s - self._observed[name].since_s >= self.steady_s)

    def _lives(self, seen: _Observed) -> bool:
        return self._now_s - seen.moved_s < self.takeover_s
