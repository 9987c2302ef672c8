"""Which process of an application gets a flow, and when a flow moves to another (Wormhole 3, 4.4.3, Figure 11).

Pure: dice are given. Two strategies are here; an application's own is a callable of the same form (`Strategy`), which the settings may name
(own_strategy.py). A strategy says where flows shall be; the publisher moves them, and never before the process that has a flow let
it go or is gone: the next one begins at the datamarker.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from roskva.errors import InvalidSetting
from roskva.model import rendezvous

OVERLOADED: Final = 1.0  # from this load on a process gets no flow by dice while another has less, and hands flows over
LIGHT: Final = 0.7  # up to this load a process takes flows from overloaded ones
MOVES_MAX: Final = 8  # of one round, so that a measurement of load sees what the last moves did


class Subscriber(NamedTuple):
    """A process of the application that is connected."""

    member: str
    weight: float = 1.0  # its share, beside the others
    load: float = 0.0  # as it says: 1 is just able to follow


# (shards of the application, where each is now, who is there, a number from 0 to 1 whenever it is called) -> where each shall be
Strategy: TypeAlias = Callable[[Collection[int], Mapping[int, str], Sequence[Subscriber], Callable[[], float]], Mapping[int, str]]


def weighted(
    shards: Collection[int], placed: Mapping[int, str], subscribers: Sequence[Subscriber], dice: Callable[[], float]
) -> dict[int, str]:
    """Weighted random: a flow that has no process gets one by dice, a light one more likely than a heavy one. Then the overloaded ones
    hand some over to light ones; all others stay where they are.
    """
    there = {subscriber.member: subscriber for subscriber in subscribers}
    result = {shard: member for shard, member in placed.items() if shard in shards and member in there}
    if not there:
        return result
    flows = dict.fromkeys(there, 0)
    for member in result.values():
        flows[member] += 1
    for shard in sorted(set(shards) - result.keys()):
        member = _thrown([(subscriber.member, _chance(subscriber, flows[subscriber.member])) for subscriber in subscribers], dice())
        result[shard] = member
        flows[member] += 1
    moves = 0
    for heavy in sorted((s for s in subscribers if s.load >= OVERLOADED), key=lambda s: -s.load):
        light = [s for s in subscribers if s.load <= LIGHT and flows[s.member] < flows[heavy.member]]
        if not light or moves == MOVES_MAX:
            break
        if flows[heavy.member] > 1:  # moving the only one would but move the trouble
            shard = min(shard for shard, member in result.items() if member == heavy.member)
            member = _thrown([(s.member, _chance(s, flows[s.member])) for s in light], dice())
            result[shard] = member
            flows[heavy.member] -= 1
            flows[member] += 1
            moves += 1
    return result


def coordinated(
    shards: Collection[int],
    placed: Mapping[int, str],
    subscribers: Sequence[Subscriber],
    dice: Callable[[], float],
    fixed: Mapping[int, str] = MappingProxyType({}),
) -> dict[int, str]:
    """One owner per shard over those that live: as few moves as possible, and those of equal weight differ by one flow at most.

    `fixed`: where some shall be whatever follows, since somebody wished it. The others make up for it as far as they can.
    """
    there = {subscriber.member: subscriber.weight for subscriber in subscribers}
    if not there:
        return {}
    result = {shard: member for shard, member in fixed.items() if shard in shards and member in there}
    placed = {**placed, **result}
    room = _room(shards, there, placed, Counter(result.values()))
    homeless = []
    for shard in sorted(set(shards) - result.keys()):
        member = placed.get(shard)
        if member is not None and room.get(member, 0) > 0:
            result[shard] = member
            room[member] -= 1
        else:
            homeless.append(shard)
    for shard in homeless:
        member = rendezvous(shard, (name for name, left in room.items() if left > 0))
        assert member is not None, "there is as much room as there are shards that are not fixed"
        result[shard] = member
        room[member] -= 1
    return result


def _room(shards: Collection[int], weights: Mapping[str, float], placed: Mapping[int, str], fixed: Mapping[str, int]) -> dict[str, int]:
    """How many flows each gets beside those that are fixed to it: none, if these are more than its share; the others share the rest."""
    left, sharing = len(shards), dict(weights)
    while True:
        quota = _quotas(left, sharing, placed, shards)
        full = [member for member in sharing if fixed.get(member, 0) > quota[member]]
        if not full:
            return {member: count - fixed.get(member, 0) for member, count in quota.items()}
        for member in full:
            del sharing[member]
            left -= fixed[member]


def _quotas(count: int, weights: Mapping[str, float], placed: Mapping[int, str], shards: Collection[int]) -> dict[str, int]:
    """How many flows each gets: its share rounded down, and one of the rest for those that have most now, so that little moves."""
    total = sum(weights.values())
    shares = {member: count * (weight / total if total > 0 else 1 / len(weights)) for member, weight in weights.items()}
    quota = {member: int(share + 1e-9) for member, share in shares.items()}
    have = dict.fromkeys(weights, 0)
    for shard, member in placed.items():
        if shard in shards and member in have:
            have[member] += 1

    def claim(member: str) -> tuple[float, float, str]:
        return (-round(shares[member] - quota[member], 6), -(have[member] - quota[member]), member)

    for member in sorted(weights, key=claim)[: count - sum(quota.values())]:
        quota[member] += 1
    return quota


def _chance(subscriber: Subscriber, flows: int) -> float:
    """Lightly loaded ones are more likely to get a flow; one that can take no more gets one only if all are like that."""
    spare = max(0.0, OVERLOADED - subscriber.load)
    return max(subscriber.weight, 0.0) * (spare + 1e-6) / (1.0 + flows / max(subscriber.weight, 1e-6)) + 1e-9


def _thrown(chances: Sequence[tuple[str, float]], dice: float) -> str:
    at = dice * sum(chance for _, chance in chances)
    for member, chance in chances:
        at -= chance
        if at < 0:
            return member
    return chances[-1][0]


STRATEGIES: Final[Mapping[str, Strategy]] = {"weighted": weighted, "coordinated": coordinated}


def strategy(named: str | Strategy) -> Strategy:
    if not isinstance(named, str):
        return named
    found = STRATEGIES.get(named)
    if found is None:
        near = difflib.get_close_matches(named[:64].lower(), STRATEGIES, n=1)
        raise InvalidSetting(
            f"There is no strategy {named[:40]!r} to balance flows: {', '.join(STRATEGIES)} are there, or your own, as"
            " package.module:function." + (f" Did you mean {near[0]!r}?" if near else "")
        )
    return found
