"""Roskva as a subscriber: takes updates of rows, maps them to objects, publishes their versions (mapping.py; Wormhole 3, Table 1).

`Notifier` is what a `Subscriber` calls back. A callback returns when everything that its updates mean is durable in the service, so
whatever the subscriber then acknowledges is; a crash before that repeats some of it, which is harmless, since only the highest version of
an object counts.

What the service does not take is tried again, with pauses up to `retry_max_s`, for as long as it takes: to give up would be to lose a
change. What waits is bounded all the same: `batches_max` callbacks work at a time, the flows behind them run out of credit, and the
publisher discards what it holds for them and reads it again later. `problem` says why it waits. An object that the service calls invalid
is left out and counted in `refused`: no repetition would make it valid.

A change of history (mapping.py) resets the application, with the operators' key, before anything of the new history is published and
after all of the old one that was under way. The history that was published last is kept in a file, since a publisher may fail over while
this does not run; a process that has no such file yet takes that of the datamarker after which its flow begins. Several processes of one
application each have their own, and each resets: that is safe, and everyone fetches once for each. Changes that were lost (`on_data_loss`)
make every object unknown that a mapping can name: nobody can say of which rows a log was that is gone. Losses that come within a second,
as of all shards of one cut log, are told to the service once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from roskva.capture.mapping import Invalidate, Mapper, Publish, Reset, coalesced
from roskva.capture.positions import BEGINNING, Position
from roskva.capture.subscriber.callbacks import Callbacks, Shard
from roskva.capture.updates import Update
from roskva.durable import private_directory, sync_directory
from roskva.errors import (
    AdministrationRefused,
    ClientStopped,
    InvalidDevice,
    InvalidName,
    InvalidSetting,
    InvalidVersion,
    RoskvaError,
    ServiceUnreachable,
    Unavailable,
    from_report,
)
from roskva.model import check_application, name_to_text
from roskva.publisher import REQUEST_S, Change, headers_of, pause_s

log = logging.getLogger(__name__)

RETRY_S_MAX: Final = 30.0
GATHER_S: Final = 1.0  # that a loss waits for those of other shards: what caused it mostly concerns all
BATCHES_MAX: Final = 16  # callbacks that publish at a time
# Of one object alone: no repetition makes it valid.
INVALID: Final = (InvalidName, InvalidVersion, InvalidDevice)


class Publishing(Protocol):
    """What is needed of roskva.Publisher."""

    async def publish_many(self, changes: Iterable[Change]) -> list[RoskvaError | None]: ...


class Ordering(Protocol):
    """What is needed of `Orders`. Each returns when it is durable, and raises a RoskvaError if it may not be."""

    async def reset(self) -> None: ...

    async def invalidate(self, name: bytes, prefix: bool) -> None: ...


class Histories(Protocol):
    """Which history of each dataset was published last. `write` returns when that is durable; it may block."""

    def read(self) -> dict[str, int]: ...

    def write(self, histories: dict[str, int]) -> None: ...


class Orders:
    """POST /v1/reset and /v1/invalidate. `key` is a publish key of the application, `admin_key` the operators', which a reset needs."""

    def __init__(self, url: str, *, application: str, key: str | None = None, admin_key: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._application = check_application(application)
        self._headers = headers_of(key or admin_key)
        self._admin_headers = None if admin_key is None else headers_of(admin_key)
        self._session: Any = None

    async def reset(self) -> None:
        if self._admin_headers is None:
            raise AdministrationRefused
        await self._post("/v1/reset", {"application": self._application}, self._admin_headers)

    async def invalidate(self, name: bytes, prefix: bool) -> None:
        what = {} if prefix and not name else {"prefix" if prefix else "object": name_to_text(name)}
        await self._post("/v1/invalidate", {"application": self._application} | what, self._headers)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _post(self, path: str, body: dict[str, str], headers: dict[str, str]) -> None:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_S))
        try:
            async with self._session.post(self._url + path, data=json.dumps(body), headers=headers) as answer:
                if answer.status != 200:
                    raise _refused(answer.status, await answer.read())
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ServiceUnreachable(f"{self._url} cannot be reached: {str(error) or type(error).__name__}.") from None


def _refused(status: int, body: bytes) -> RoskvaError:
    try:
        report = json.loads(body)["error"]
        error = from_report(str(report["code"]), str(report["message"]), bool(report.get("transient")))
        if isinstance(error, Unavailable):
            error.retry_after_s = float(report.get("retry_after_s") or error.retry_after_s)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ServiceUnreachable(f"The service's address answered {status}, which is not its own answer.")
    return error


class HistoryFile:
    """A small JSON file; a new one replaces it, so that it is never half written."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, int]:
        try:
            found = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise InvalidSetting(f"The file {self._path}, which says what was published last, cannot be read: {error}.") from None
        if not isinstance(found, dict) or not all(type(history) is int for history in found.values()):
            raise InvalidSetting(
                f"The file {self._path} does not say what was published last: delete it, then `roskva reset` the application."
            )
        return found

    def write(self, histories: dict[str, int]) -> None:
        private_directory(self._path.parent)
        fresh = self._path.with_name(self._path.name + ".new")
        with fresh.open("w") as file:
            json.dump(histories, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        sync_directory(self._path.parent)


class _Gate:
    """Many publish at a time; who resets is alone. Nobody new enters before whoever waits to be alone."""

    def __init__(self) -> None:
        self._inside = 0
        self._alone = 0  # those who are, or wait for it
        self._empty = asyncio.Event()
        self._open = asyncio.Event()
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        while self._alone:
            await self._open.wait()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        self._alone += 1
        self._open.clear()
        try:
            async with self._turn:
                while self._inside:
                    await self._empty.wait()
                yield
        finally:
            self._alone -= 1
            if not self._alone:
                self._open.set()


class Notifier(Callbacks):
    """The callbacks of a subscriber that publishes. Belongs to one event loop."""

    def __init__(
        self,
        mapper: Mapper,
        publisher: Publishing,
        orders: Ordering,
        histories: Histories,
        *,
        batches_max: int = BATCHES_MAX,
        retry_max_s: float = RETRY_S_MAX,
        gather_s: float = GATHER_S,
    ) -> None:
        self.mapper = mapper
        self.published = self.invalidated = self.resets = self.losses = self.refused = 0
        self.problem: RoskvaError | None = None  # why something waits now
        self._publisher = publisher
        self._orders = orders
        self._kept = histories
        self._histories = histories.read()
        self._batches = asyncio.Semaphore(batches_max)
        self._gate = _Gate()
        self._noting = asyncio.Lock()
        self._losing = asyncio.Lock()
        self._dealt_with = 0  # so many of the losses
        self._gather_s = gather_s
        self._retry_max_s = retry_max_s
        # After which position the flow of a shard began here: what is up to there was published, whoever did it.
        self.began_after: Callable[[Shard], Position | None] = lambda _: None

    async def on_updates(self, shard: Shard, updates: Sequence[Update]) -> None:
        async with self._batches:
            done = 0
            while done < len(updates):
                async with self._gate.shared():
                    done, history = await self._until_reset(shard, updates, done)
                if history is not None:
                    async with self._gate.alone():
                        await self._reset(shard.dataset, history)

    async def on_data_loss(self, shard: Shard, after: Position, upto: Position) -> None:
        self.losses += 1
        number = self.losses
        log.warning("What %s has after %s, up to %s, is lost: everything that the mappings name is invalidated.", shard, after, upto)
        await asyncio.sleep(self._gather_s)
        async with self._losing:
            if number <= self._dealt_with:
                return  # what was told since then was told of this, too
            async with self._batches:
                upto_number = self.losses
                await self._perform(self.mapper.everything())
            self._dealt_with = upto_number

    async def _until_reset(self, shard: Shard, updates: Sequence[Update], start: int) -> tuple[int, int | None]:
        """How many are done, and the history that the next one begins."""
        dataset = shard.dataset
        if dataset not in self._histories:
            # Another host's notifier may have published all before: the datamarker tells of which history that was.
            after = self.began_after(shard) or BEGINNING
            last = after if after > BEGINNING else updates[start].change.position
            await self._note(dataset, last.history, first=True)
        history = self._histories[dataset]
        pending: list[Publish | Invalidate] = []
        next_history, done = None, start
        for update in updates[start:]:
            found = self.mapper.instructions(update.change, history)
            if found and isinstance(found[0], Reset):
                next_history = found[0].history
                break
            pending += [one for one in found if not isinstance(one, Reset)]
            done += 1
        await self._perform(pending)
        return done, next_history

    async def _reset(self, dataset: str, history: int) -> None:
        if self._histories[dataset] >= history:
            return  # another shard was first
        attempt = 0
        while True:
            try:
                await self._orders.reset()
                break
            except RoskvaError as error:
                await self._wait(attempt, [error])
                attempt += 1
        self.resets += 1
        log.warning("The log of %s has another history (%d): the application was reset.", dataset, history)
        await self._note(dataset, history)

    async def _note(self, dataset: str, history: int, first: bool = False) -> None:
        """After a reset and before anything is published: a crash in between resets once more, and never once too little."""
        async with self._noting:
            if first and dataset in self._histories:
                return  # another shard was first; if its history is an earlier one, a reset comes between
            histories = self._histories | {dataset: history}
            await asyncio.to_thread(self._kept.write, histories)
            self._histories = histories

    async def _perform(self, instructions: Iterable[Publish | Invalidate]) -> None:
        work = coalesced(instructions)
        publishes, invalidations, attempt = work.publishes, work.invalidations, 0
        while publishes or invalidations:
            errors: list[RoskvaError] = []
            publishes = await self._publish(publishes, errors)
            invalidations = await self._invalidate(invalidations, errors)
            if not errors:
                break
            await self._wait(attempt, errors)
            attempt += 1
        self.problem = None

    async def _publish(self, publishes: Sequence[Publish], errors: list[RoskvaError]) -> tuple[Publish, ...]:
        """The answer: those that are not durable yet."""
        again = []
        results = await self._publisher.publish_many([(one.object, one.version, one.source) for one in publishes]) if publishes else []
        for one, error in zip(publishes, results, strict=True):
            if error is None:
                self.published += 1
            elif isinstance(error, INVALID):
                self.refused += 1
                log.error("An object of a mapping was refused, and is left out: %s", error)
            elif isinstance(error, ClientStopped):
                raise error
            else:
                again.append(one)
                errors.append(error)
        return tuple(again)

    async def _invalidate(self, invalidations: Sequence[Invalidate], errors: list[RoskvaError]) -> tuple[Invalidate, ...]:
        again = []
        for one in invalidations:
            try:
                await self._orders.invalidate(one.name, one.prefix)
                self.invalidated += 1
            except INVALID as error:
                self.refused += 1
                log.error("An object of a mapping was refused, and is left out: %s", error)
            except RoskvaError as error:
                again.append(one)
                errors.append(error)
        return tuple(again)

    async def _wait(self, attempt: int, errors: Sequence[RoskvaError]) -> None:
        self.problem = errors[0]
        asked_s = max((error.retry_after_s for error in errors if isinstance(error, Unavailable)), default=0.0)
        pause = min(self._retry_max_s, pause_s(attempt, asked_s, random.random()))
        log.warning("The service does not take what was captured, and is asked again in %.1f s: %s", pause, errors[0])
        await asyncio.sleep(pause)
