"""What an operator or a backend orders for everyone: to reset an application, to invalidate objects (docs/operations.md).

A reset raises the application's epoch in the manifest; there is nothing else to do, since whatever counts versions looks there. An
invalidation is a record of the feed "fan-outs", durable before it is answered: one in the object's partition, or one in every
partition for all objects whose names begin alike. It carries the epoch, which is read again after the fsync, as publishing does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from roskva.access.limits import Bucket
from roskva.config import Settings
from roskva.errors import MalformedMessage, RateLimited, Unavailable, UnknownApplication
from roskva.feed.interface import FAN_OUTS, Entry
from roskva.gateway.permission import MayPublish, everywhere
from roskva.gateway.publish import Appender
from roskva.matcher.events import Invalidation, encode_invalidation
from roskva.model import EPOCH_MAX, name_from_text, object_key, partition_of

INVALIDATIONS_PER_S: Final = 10.0  # of one application: each may tell everybody, and is a record in every partition
INVALIDATIONS_BURST: Final = 100.0
_EPOCH_RISES_MAX: Final = 3

T = TypeVar("T")


class _Reset(Struct, forbid_unknown_fields=True):
    application: str


class _Invalidate(Struct, forbid_unknown_fields=True):
    application: str
    object: str | UnsetType = UNSET
    prefix: str | UnsetType = UNSET


class Commands:
    def __init__(
        self,
        settings: Settings,
        feed: Appender,
        epoch_of: Callable[[str], int],
        raise_epoch: Callable[[str, int], int],
        read_epoch: Callable[[str], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._feed = feed
        self._epoch_of = epoch_of  # as last seen: for the event loop
        self._raise_epoch = raise_epoch  # these two may wait for the manifest: in a thread
        self._read_epoch = read_epoch
        self._clock = clock
        self._invalidations: dict[str, Bucket] = {}  # of the applications that did

    async def reset(self, body: bytes) -> dict[str, Any]:
        request = _decode(body, _Reset)
        self._check(request.application)
        return {"application": request.application, "epoch": await asyncio.to_thread(self._reset, request.application)}

    def _reset(self, application: str) -> int:
        seen = self._read_epoch(application)
        if seen >= EPOCH_MAX:
            raise Unavailable("The application was reset as often as can be counted.")
        return self._raise_epoch(application, seen)

    async def invalidate(self, body: bytes, may: MayPublish = everywhere) -> dict[str, Any]:
        """Answered when it is durable; telling everyone takes as long as it takes."""
        request = _decode(body, _Invalidate)
        may(request.application)
        self._check(request.application)
        name, whole = _name_of(request)
        self._take(request.application)
        epoch = self._epoch_of(request.application)
        for _ in range(_EPOCH_RISES_MAX):
            key = object_key(request.application, epoch, name)
            partitions = [partition_of(key, self._settings.partitions)] if whole else range(self._settings.partitions)
            record = Entry(key, encode_invalidation(Invalidation(key, prefix=not whole)))
            # One after the other: if one fails, some have landed, and whoever repeats the request does no harm.
            appended = [await self._feed.append_to(FAN_OUTS, partition, [record]) for partition in partitions]
            now = max(one.looked.get(request.application, 0) for one in appended)
            if now == epoch:
                # Whoever waits for it looks for what the pipeline says later than this.
                time_ms = time.time_ns() // 1_000_000
                return {"application": request.application, "accepted": True, "epoch": epoch, "time_ms": time_ms}
            epoch = now
        raise Unavailable("The application is being reset over and over.")

    def _take(self, application: str) -> None:
        """Raises RateLimited."""
        bucket = self._invalidations.setdefault(application, Bucket(INVALIDATIONS_PER_S, INVALIDATIONS_BURST))
        wait_s = bucket.take(self._clock())
        if wait_s > 0:
            raise RateLimited("ten invalidations a second", wait_s)

    def _check(self, application: str) -> None:
        if application not in self._settings.applications:
            raise UnknownApplication(application)


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"The request is not of the documented form: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"The request is not JSON: {error}.") from None
    except RecursionError:
        raise MalformedMessage("The request is nested too deeply.") from None


def _name_of(request: _Invalidate) -> tuple[bytes, bool]:
    """The name, or how names begin; and which of the two it is."""
    if request.object is not UNSET and request.prefix is not UNSET:
        raise MalformedMessage("The request has `object` and `prefix`: one of them, or neither for the whole application.")
    if request.object is not UNSET:
        return name_from_text(request.object), True
    if request.prefix is UNSET or request.prefix == "":
        return b"", False
    return name_from_text(request.prefix), False
