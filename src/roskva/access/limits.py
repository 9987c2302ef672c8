"""How much of everything: token buckets, one alone or one for each key. Pure: callers bring the time.

A bucket is one number, the time at which it is full: what it holds now is `burst` less what flows in until then. So a bucket that is
full is as good as none, and can be forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

_LOOKED_AT_PER_CALL: Final = 4  # kept keys, while there is no room for a new one
# Times since 1970 have a resolution of some 2e-7 s: whoever waited for as long as it was told is not sent away for less than this.
_ROUNDING_S: Final = 1e-6


def _take(full_at_s: float, now_s: float, count: float, rate_per_s: float, burst: float) -> tuple[float, float]:
    """How long to wait (0.0: it was taken), and when the bucket is full then."""
    missing_s = max(0.0, full_at_s - now_s)  # what is missing to a full bucket, as time
    # More than a bucket can ever hold is taken from a full one, and leaves a debt.
    wait_s = missing_s - max(0.0, burst - count) / rate_per_s
    if wait_s > _ROUNDING_S:
        return wait_s, full_at_s
    return 0.0, now_s + missing_s + count / rate_per_s


class Bucket:
    """`rate_per_s` in the long run, `burst` at once. It begins full."""

    __slots__ = ("_full_at_s", "burst", "rate_per_s")

    def __init__(self, rate_per_s: float, burst: float) -> None:
        assert rate_per_s > 0
        assert burst > 0
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._full_at_s = float("-inf")

    def take(self, now_s: float, count: float = 1.0) -> float:
        """0.0: it is allowed, and taken. Otherwise nothing is taken, and it would be allowed after so many seconds.

        A count above the burst is allowed when the bucket is full, and leaves a debt.
        """
        wait_s, self._full_at_s = _take(self._full_at_s, now_s, count, self.rate_per_s, self.burst)
        return wait_s


class Buckets:
    """A bucket for each key, `keys_max` of them at most.

    A full bucket is forgotten when room is needed, which changes nothing for its key. While none that was looked at is full, keys without
    a bucket share one: whoever comes from a million addresses takes from the others that are new, and nobody's debt is forgotten.
    """

    __slots__ = ("_full_at_s", "_keys_max", "_overflow", "burst", "rate_per_s")

    def __init__(self, rate_per_s: float, burst: float, keys_max: int = 100_000) -> None:
        assert keys_max > 0
        self._overflow = Bucket(rate_per_s, burst)
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._keys_max = keys_max
        self._full_at_s: OrderedDict[Hashable, float] = OrderedDict()  # those that were taken from longest ago first

    def __len__(self) -> int:
        return len(self._full_at_s)

    def take(self, key: Hashable, now_s: float, count: float = 1.0) -> float:
        """As Bucket.take, of the key's own bucket."""
        full_at_s = self._full_at_s.get(key)
        if full_at_s is None:
            if len(self._full_at_s) >= self._keys_max and not self._made_room(now_s):
                return self._overflow.take(now_s, count)
            full_at_s = float("-inf")
        wait_s, full_at_s = _take(full_at_s, now_s, count, self.rate_per_s, self.burst)
        if wait_s == 0.0:
            self._full_at_s[key] = full_at_s
            self._full_at_s.move_to_end(key)
        return wait_s

    def wait_s(self, key: Hashable, now_s: float) -> float:
        """How long until the key owes nothing; 0: it does not."""
        full_at_s = self._full_at_s.get(key)
        return 0.0 if full_at_s is None else max(0.0, full_at_s - now_s - self.burst / self.rate_per_s)

    def spend(self, key: Hashable, now_s: float, count: float) -> None:
        """Take what was used already, whatever there is: the key may owe."""
        full_at_s = self._full_at_s.get(key)
        if full_at_s is None and len(self._full_at_s) >= self._keys_max and not self._made_room(now_s):
            return  # as many as are kept owe something: this one is let off
        self._full_at_s[key] = max(now_s, full_at_s or now_s) + count / self.rate_per_s
        self._full_at_s.move_to_end(key)

    def _made_room(self, now_s: float) -> bool:
        """Forget what is full among the first few; the others go to the end, so that all have their turn."""
        for _ in range(min(_LOOKED_AT_PER_CALL, len(self._full_at_s))):
            key, full_at_s = self._full_at_s.popitem(last=False)
            if full_at_s > now_s:
                self._full_at_s[key] = full_at_s
        return len(self._full_at_s) < self._keys_max
