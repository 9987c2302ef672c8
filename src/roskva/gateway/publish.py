"""Publishing: from the body of a request to durable records of the feed, item by item (Thialfi 3.2 and 4, Publisher
library).

A request is answered when the last of its items is durable or refused. One bad item does not stop the rest, and a partition
that is full or failing refuses only its own. Records carry the application's epoch, as it was last seen: it is read again
after the fsync, once for all publishes that share it, and if it rose in between, the updates are appended once more under the
new one, since versions of the old one no longer count.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from roskva.access.limits import Bucket
from roskva.config import ApplicationSettings, Settings
from roskva.errors import BadRequest, MalformedMessage, RateLimited, RoskvaError, TooManyOperations, Unavailable, UnknownApplication
from roskva.feed.interface import UPDATES, Entry
from roskva.feed.lanes import Appended
from roskva.gateway.permission import MayPublish, everywhere
from roskva.matcher.forms import STANDARD, At, Form, Malformed, Stamp, check, extract, form_of
from roskva.model import (
    VERSION_MAX,
    ObjectKey,
    Stamps,
    Update,
    check_device,
    name_from_text,
    name_of,
    object_key,
    partition_of,
    version_from_number,
)
from roskva.probes import reached
from roskva.registrar.trails import Trails
from roskva.telemetry.latency import Sampler
from roskva.telemetry.metrics import Metrics

PUBLISHES_BURST: Final = 2
LARGE_BYTES: Final = 16 << 10  # of a request: some 300 updates
# A larger one is decoded in a turn of the event loop that is its own, and goes to the feed in pieces of so many updates. Of all that are
# large so many pieces are under way, one read while another is written: a small one shares its commit with no more than these. A piece
# that takes longer, since a partition is busy, lets the next one begin.
PIECE: Final = 500
PIECES_AT_ONCE: Final = 2
PIECE_S_MAX: Final = 0.05
_EPOCH_RISES_MAX: Final = 3
_OK: Final = b'{"ok":true}'


class Appender(Protocol):
    """The part of the feed's lanes that publishing needs. `looked` is the epochs, by a look that began after the fsync."""

    def append_to(self, topic: str, partition: int, entries: Sequence[Entry]) -> asyncio.Future[Appended]: ...


class Item(Struct, forbid_unknown_fields=True):
    """An update as a publisher sends it."""

    object: str
    version: Annotated[int, Meta(ge=0, le=VERSION_MAX)] | str
    source: str | None = None


class _Request(Struct, forbid_unknown_fields=True):
    """All forms of a request in one; exactly one of `updates`, `raw` and `object` is there."""

    application: str
    updates: list[Item] | UnsetType = UNSET
    raw: list[Raw] | UnsetType = UNSET
    object: str | UnsetType = UNSET
    version: Annotated[int, Meta(ge=0, le=VERSION_MAX)] | str | UnsetType = UNSET
    source: str | UnsetType | None = UNSET


class _LooseRequest(Struct, forbid_unknown_fields=True):
    """The same without looking into the items: read when something in them is wrong, to find out which and what."""

    application: str
    updates: list[Raw] | UnsetType = UNSET
    raw: list[Raw] | UnsetType = UNSET
    object: Raw | UnsetType = UNSET
    version: Raw | UnsetType = UNSET
    source: Raw | UnsetType = UNSET


class _Stored(Struct, omit_defaults=True):
    """The value of a record, in the standard form."""

    object: str
    version: int
    source: str = ""


class _Valid(NamedTuple):
    """An item that may be appended. Without a name: not found in the application's own form; the Bridge says why."""

    name: bytes | None
    value: bytes
    version: int = 0
    source: str = ""


# An update as it came: read, not yet read, of a single one; and in the application's own form.
_Given = Item | Raw | dict[str, Any] | bytes
_Group = tuple[list[int], list[Entry]]  # of one partition: the places of items in their request, and their records

_requests = msgspec.json.Decoder(_Request)
_loose_requests = msgspec.json.Decoder(_LooseRequest)
_encoder = msgspec.json.Encoder()


class Publishing:
    def __init__(
        self,
        settings: Settings,
        feed: Appender,
        epoch_of: Callable[[str], int],
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        hint: Callable[[Sequence[Update], Sequence[Stamps]], None] | None = None,
        trails: Trails | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self.large_bytes, self.piece = LARGE_BYTES, PIECE
        self._large = asyncio.Lock()  # one large request is read in a turn of the loop, so that others have theirs
        self._pieces = asyncio.Semaphore(PIECES_AT_ONCE)
        self._buckets: dict[str, Bucket] = {}  # of the applications that published
        self._feed = feed
        self._epoch_of = epoch_of
        self._metrics = metrics
        self._hint = hint  # told of what is durable: the fast path
        self._trails = trails
        self._sampler = Sampler(settings.stamps_per_s if trails is not None else 0.0)

    async def publish(self, body: bytes, may: MayPublish = everywhere, published_us: int = 0) -> tuple[int, bytes]:
        """The HTTP status and body of the answer. Raises for what concerns the request as a whole; `may`, for who asks.

        `published_us` is when the publisher was called, by its own word.
        """
        self._metrics.publish_requests += 1
        received_us = 0 if self._trails is None else self._trails.now_us()
        if len(body) <= self.large_bytes:
            application, form, given = self._read(body, may)
            return _answer(await self._piece(application, form, given, At(received_us, published_us)))
        async with self._large:
            application, form, given = self._read(body, may)
            await asyncio.sleep(0)
        return _answer(await self._in_pieces(application, form, given, At(received_us, published_us)))

    async def _in_pieces(self, application: str, form: Form, given: Sequence[_Given], at: At) -> list[RoskvaError | None]:
        pieces: list[asyncio.Task[list[RoskvaError | None]]] = []
        try:
            for start in range(0, len(given), self.piece):
                if start:
                    reached("publish: a large request goes in pieces")
                async with self._pieces:
                    # One update of a request is sampled at most.
                    piece = self._piece(application, form, given[start : start + self.piece], None if start else at)
                    pieces.append(asyncio.create_task(piece))
                    await asyncio.wait(pieces[-1:], timeout=PIECE_S_MAX)
            return [outcome for task in pieces for outcome in await task]
        finally:
            for task in pieces:
                task.cancel()

    async def _piece(self, application: str, form: Form, given: Sequence[_Given], at: At | None) -> list[RoskvaError | None]:
        items = [_checked(one, application, form) for one in given]
        outcomes = [item if isinstance(item, RoskvaError) else None for item in items]
        valid = [(index, item) for index, item in enumerate(items) if not isinstance(item, RoskvaError)]
        self._metrics.updates_refused += len(items) - len(valid)
        self._metrics.updates_accepted += len(valid)
        # Only now: what is refused must not use up the turn of what could be measured.
        sampled = at is not None and valid and self._trails is not None and self._sampler.is_due(self._clock())
        await self._append(application, form, valid, outcomes, at if sampled else None)
        return outcomes

    def _read(self, body: bytes, may: MayPublish) -> tuple[str, Form, Sequence[_Given]]:
        """What it publishes is not looked into yet."""
        request: _Request | _LooseRequest
        try:
            request = _requests.decode(body)
        except msgspec.ValidationError:
            request = _decode_loosely(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise MalformedMessage(f"The request is not JSON: {error}.") from None
        except RecursionError:
            raise MalformedMessage("The request is nested too deeply.") from None
        may(request.application)
        settings = self._settings.applications.get(request.application)
        if settings is None:
            raise UnknownApplication(request.application)
        form = form_of(settings)
        form = STANDARD if form == STANDARD else form
        if (request.updates is not UNSET) + (request.raw is not UNSET) + (request.object is not UNSET) != 1:
            raise MalformedMessage("The request must have one of `updates`, `raw`, or `object` with `version`.")
        if request.updates is UNSET and request.raw is UNSET:
            self._take(request.application, settings, 1)
            return request.application, form, [_single(request)]
        if request.version is not UNSET or request.source is not UNSET:
            raise MalformedMessage("`version` and `source` stand beside `object`, or inside the items of `updates`.")
        listed: Sequence[Item | Raw] = request.raw if request.updates is UNSET else request.updates  # type: ignore[assignment]
        if len(listed) > self._settings.publish_batch_max:
            raise TooManyOperations(len(listed), self._settings.publish_batch_max)
        self._take(request.application, settings, len(listed))
        if request.updates is UNSET:
            return request.application, form, [bytes(raw) for raw in listed]  # type: ignore[arg-type]
        return request.application, form, listed

    def _take(self, application: str, settings: ApplicationSettings, count: int) -> None:
        """Raises RateLimited, before anything is done for the updates."""
        rate = settings.publishes_per_s_max
        bucket = self._buckets.get(application)
        if bucket is None or bucket.rate_per_s != rate:
            bucket = self._buckets[application] = Bucket(rate, max(1.0, PUBLISHES_BURST * rate))
        wait_s = bucket.take(self._clock(), count)
        if wait_s > 0:
            self._metrics.limited_publishes += count
            raise RateLimited("publishes_per_s_max", wait_s)

    async def _append(
        self,
        application: str,
        form: Form,
        items: list[tuple[int, _Valid]],
        outcomes: list[RoskvaError | None],
        at: At | None,
    ) -> None:
        """Append what is valid, a call per partition, so that each item gets the outcome of its own. With `at`, one of them is sampled."""
        epoch = self._epoch_of(application)
        sampled = -1 if at is None or not items else items[self._sampler.turns % len(items)][0]
        for _ in range(_EPOCH_RISES_MAX):
            groups = self._grouped(Stamp(application, epoch, form=form), items, sampled, at)
            epochs = await self._append_groups(groups, outcomes)
            if any(outcomes):
                items = [item for item in items if outcomes[item[0]] is None]
            risen = [now for after in epochs if (now := after.get(application, 0)) != epoch]
            if not items or not risen:
                self._metrics.updates_appended += len(items)
                start = object_key(application, epoch, b"")
                stamps = () if at is None else self._stamps(at, start, [one for index, one in items if index == sampled])
                if self._hint is not None and items:
                    updates = [Update(ObjectKey(start + one.name), one.version, one.source) for _, one in items if one.name is not None]
                    self._hint(updates, stamps)
                return
            epoch = max(risen)
        for index, _ in items:
            outcomes[index] = Unavailable("The application is being reset over and over.")

    def _stamps(self, at: At, start: bytes, sampled: Sequence[_Valid]) -> Sequence[Stamps]:
        """Of the sampled item, now that it is durable; of none, if that was refused or has no name."""
        if self._trails is None:
            return ()
        now_us = self._trails.now_us()
        stamps = [
            Stamps(ObjectKey(start + one.name), one.version, at.published_us, at.received_us, durable_us=now_us)
            for one in sampled
            if one.name is not None
        ]
        self._trails.accepted(stamps)
        return stamps

    def _grouped(self, stamp: Stamp, items: list[tuple[int, _Valid]], sampled: int, at: At | None) -> dict[int, _Group]:
        headers = _headers(stamp)
        sampled_headers = headers if at is None else stamp._replace(at=at).encode()
        start = object_key(stamp.application, stamp.epoch or 0, b"")
        partitions = self._settings.partitions
        groups: dict[int, _Group] = {}
        for index, (name, value, _, _) in items:
            # What has no name goes anywhere, but always to the same place: by its own bytes.
            key = start + (value[:64] if name is None else name)
            partition = partition_of(key, partitions)
            group = groups.get(partition)
            if group is None:
                group = groups[partition] = ([], [])
            group[0].append(index)
            group[1].append(Entry(key, value, headers if index != sampled else sampled_headers))
        return groups

    async def _append_groups(self, groups: dict[int, _Group], outcomes: list[RoskvaError | None]) -> list[Mapping[str, int]]:
        """Answers the epochs as they were after each group was durable."""
        under_way: list[tuple[list[int], asyncio.Future[Appended]]] = []
        epochs: list[Mapping[str, int]] = []
        for partition, (indexes, entries) in groups.items():
            try:
                under_way.append((indexes, self._feed.append_to(UPDATES, partition, entries)))
            except RoskvaError as error:
                self._refuse(indexes, error, outcomes)
        try:
            for indexes, future in under_way:
                try:
                    epochs.append((await future).looked)
                except RoskvaError as error:
                    self._refuse(indexes, error, outcomes)
        finally:
            for _, future in under_way:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # seen
        return epochs

    def _refuse(self, indexes: list[int], error: RoskvaError, outcomes: list[RoskvaError | None]) -> None:
        self._metrics.updates_unavailable += len(indexes)
        for index in indexes:
            outcomes[index] = error


@lru_cache(1_024)
def _headers(stamp: Stamp) -> bytes:
    """Most updates of an application have the same."""
    return stamp.encode()


def _decode_loosely(body: bytes) -> _LooseRequest:
    try:
        return _loose_requests.decode(body)
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"The request is not of the documented form: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"The request is not JSON: {error}.") from None
    except RecursionError:
        raise MalformedMessage("The request is nested too deeply.") from None


def _single(request: _Request | _LooseRequest) -> Item | dict[str, Any]:
    given = {"object": request.object, "version": request.version, "source": request.source}
    values = {name: value for name, value in given.items() if value is not UNSET}
    if isinstance(request, _Request) and "version" in values:
        return Item(**values)  # type: ignore[arg-type]
    return {name: _unpacked(value) if isinstance(value, Raw) else value for name, value in values.items()}


def _unpacked(raw: Raw) -> Any:
    """What was passed over so far may still be wrong: numbers that nobody can hold, bytes that are no text."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"The update is not JSON: {error}.") from None


def _checked(item: _Given, application: str, form: Form) -> _Valid | RoskvaError:
    try:
        if type(item) is Item:
            version = item.version
            return _valid(item.object, version if type(version) is int else version_from_number(version), item.source, form)
        if isinstance(item, bytes):
            return _checked_raw(item, application, form)
        fields = item if isinstance(item, dict) else _unpacked(item)  # type: ignore[arg-type]
        if not isinstance(fields, dict):
            raise MalformedMessage("The update is not an object with `object`, `version` and perhaps `source`.")
        unknown = fields.keys() - {"object", "version", "source"}
        if unknown:
            raise MalformedMessage(f"The update has an unknown field {min(unknown)[:64]!r}.")
        missing = {"object", "version"} - fields.keys()
        if missing:
            raise MalformedMessage(f"The update has no field {min(missing)!r}.")
        name, source = fields["object"], fields.get("source")
        if not isinstance(name, str) or not (source is None or isinstance(source, str)):
            raise MalformedMessage("`object` and `source` of an update are text.")
        return _valid(name, version_from_number(fields["version"]), source, form)
    except BadRequest as error:
        return error


def _valid(text: str, version: int, source: str | None, form: Form) -> _Valid:
    name = name_from_text(text)
    device = check_device(source) if source else ""
    if form is STANDARD:
        return _Valid(name, _encoder.encode(_Stored(text, version, device)), version, device)
    return _Valid(name, _encoder.encode(_in_form(form, text, version, device)), version, device)


def _in_form(form: Form, text: str, version: int, source: str) -> dict[str, Any]:
    """The update as this application's own form has it: the Bridge knows only one form per application."""
    document: dict[str, Any] = {}
    for path, value in zip(form, (text, version, source), strict=True):
        if value == "":
            continue
        *outer, last = path.split(".")
        place = document
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = value
    return document


def _checked_raw(value: bytes, application: str, form: Form) -> _Valid | RoskvaError:
    """Appended as it is, whatever it is: what the Bridge cannot read becomes a dead letter, where its reason can be seen."""
    fields = extract(value, form)
    update = fields if isinstance(fields, Malformed) else check(application, 0, fields)
    if isinstance(update, Malformed):
        return _Valid(None, value)
    return _Valid(name_of(update.object), value, update.version, update.source)


def error_object(error: RoskvaError) -> dict[str, Any]:
    """How every error looks over HTTP."""
    retry_after_s = error.retry_after_s if isinstance(error, Unavailable) else 0.0
    return {"code": error.code, "message": str(error), "transient": error.transient, "retry_after_s": retry_after_s}


def _answer(outcomes: list[RoskvaError | None]) -> tuple[int, bytes]:
    """200 when anything was accepted. When nothing was, the status says whether to try again, and `error` repeats the first."""
    errors = [error for error in outcomes if error is not None]
    if not errors:
        return 200, b'{"results":[' + b",".join([_OK] * len(outcomes)) + b"]}"
    results = [{"ok": True} if error is None else {"error": error_object(error)} for error in outcomes]
    if len(errors) < len(outcomes):
        return 200, _encoder.encode({"results": results})
    transient = [error for error in errors if error.transient]
    first = (transient or errors)[0]
    return first.status, _encoder.encode({"results": results, "error": error_object(first)})
