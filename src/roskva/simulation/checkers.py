"""What must hold. Each checker is told of what happens, and may say at once that the promise is broken; or it is asked at the end.

`reason(world)` is asked after all faults have stopped, until it answers None or the time for healing is over: then the reason is the
failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from roskva.client.actions import Notification
from roskva.matcher.cells import object_row, read_copies
from roskva.matcher.scratch import SCRATCH
from roskva.model import ClientId, name_of, object_key
from roskva.registrar.cells import client_row
from roskva.registrar.row import ClientRow, Waiting

if TYPE_CHECKING:
    from roskva.registrar.service import Registrar
    from roskva.simulation.clients import Application
    from roskva.simulation.world import World

_LONG_HEARTBEAT_S: Final = 60.0
_UNDER_WAY_S: Final = 30.0  # no message and no stopped process is late by more


class Broken(AssertionError):
    """The promise does not hold."""

    def __init__(self, checker: Checker, why: str) -> None:
        super().__init__(f"{type(checker).__name__}: {why}")
        self.checker = type(checker).__name__


class Checker:
    def broken(self, why: str) -> Broken:
        return Broken(self, why)

    def notified(self, application: Application, notification: Notification) -> None: ...

    def reason(self, world: World) -> str | None:
        """Why the world is not at rest yet."""
        return None


class LatestLearned(Checker):
    """Every registered client has learned the latest acknowledged version, or "unknown" after it."""

    def reason(self, world: World) -> str | None:
        for application in world.applications:
            for name in application.wishes if application.running else ():
                missing = application.missing(name)
                if missing:
                    truth = world.truth[name]
                    return (
                        f"{application.device} has {truth.described(name, application.store.get(name, -1))}, not {truth.told(missing[-1])}"
                    )
        return None


class NothingForgotten(Checker):
    """No acknowledged publish is forgotten: somebody who registers for everything, after all is over, learns of everything.

    While no state was lost, by its version: "unknown" is for what was lost, or forgotten by a sweep while nobody was registered for it.
    """

    def __init__(self) -> None:
        self.newcomer: Application | None = None
        self._unknown: set[bytes] = set()

    def notified(self, application: Application, notification: Notification) -> None:
        if application is self.newcomer and notification.version is None:
            self._unknown.add(notification.name)

    def reason(self, world: World) -> str | None:
        if self.newcomer is None:
            return None
        for name, truth in world.truth.items():
            known = self.newcomer.store.get(name, -1)
            if known < truth.latest_acknowledged:
                return f"a newcomer has {truth.described(name, known)}, not {truth.told(truth.latest_acknowledged)}"
            if name in self._unknown and not world.knobs.loses_state and self._is_known(world, name):
                raise self.broken(f"{name.decode()} is unknown to a newcomer, though nothing was lost")
        return None

    def _is_known(self, world: World, name: bytes) -> bool:
        """Whether a version was acknowledged since the last reset, and no sweep forgot it."""
        truth = world.truth[name]
        return truth.latest_acknowledged > truth.reset_at(world.epoch) and name not in world.kept.versions_forgotten


class NoRegress(Checker):
    """Within one run of a client, no version is handed over as new after a later one. A reset makes all versions before it lower."""

    def notified(self, application: Application, notification: Notification) -> None:
        if notification.version is None:
            return
        told = (notification.epoch, notification.version)
        before = application.shown.get(notification.name, (-1, -1))
        if told <= before and not application.world.stores.epochs_lost:
            raise self.broken(f"{application.device} was shown {notification.name.decode()} {told} after {before}")
        application.shown[notification.name] = told


class OnlyPublished(Checker):
    """Nothing is notified that was never published, in that epoch."""

    def notified(self, application: Application, notification: Notification) -> None:
        name, epoch, version = notification.name, notification.epoch, notification.version
        if version is not None and application.world.history.serial_of(name, epoch, version) is None:
            raise self.broken(f"{application.device} was told of {name.decode()} {version}, which never was in epoch {epoch}")


class SourceLeftOut(Checker):
    """The source of a change is not notified of it, while nothing goes wrong: no faults, one publish of an object at a time."""

    def __init__(self) -> None:
        self._yielded: set[tuple[str, bytes, int]] = set()  # by registrations: shown again if the application fails on them

    def notified(self, application: Application, notification: Notification) -> None:
        world, name, version = application.world, notification.name, notification.version
        if world.knobs.faults or version is None:
            return
        if not world.settled_since_registration(application, name):
            self._yielded.add((application.device, name, version))
        if (application.device, name, version) in self._yielded:
            return
        serial = world.history.serial_of(name, notification.epoch, version)
        if serial is not None and world.truth[name].sources[serial] == {application.device}:
            raise self.broken(f"{application.device} was told of its own {name.decode()} {version}")


class UnregisteredSilence(Checker):
    """Whoever is not registered hears nothing: its application never, its client only until the server has heard of it."""

    def told(self, application: Application, name: bytes) -> None:
        """A message names this object."""
        registered, since_s = application.confirmed.get(name, (True, 0.0))
        silence_s = application.world.loop.time() - since_s
        if name not in application.wishes and not registered and silence_s > _UNDER_WAY_S and not application.cloned:
            raise self.broken(f"{application.device} gets a message about {name.decode()}, unregistered {silence_s:.0f} s ago")

    def notified(self, application: Application, notification: Notification) -> None:
        if notification.name not in application.wishes:
            raise self.broken(f"{application.device} was told of {notification.name.decode()}, for which it is not registered")


class SummariesAgree(Checker):
    """What clients wish for, what Registrars have, and what the Matcher has, is the same; and every client is in sync."""

    def reason(self, world: World) -> str | None:
        for application in world.applications:
            if not application.running:
                continue
            if application.stopped:
                return f"{application.device} stopped"
            if not application.core.in_sync(application.now_s()):
                return f"{application.device} is not in sync"
            reason = self._compare(world, application)
            if reason is not None:
                return reason
        return None

    def _compare(self, world: World, application: Application) -> str | None:
        partitions = world.settings.partitions
        client = world.client_of(application)
        row_key = client_row(client, partitions)
        row = ClientRow(client, world.stores.rows.get(row_key, {}).values(), world.epoch)
        wishes = set(application.wishes)
        registered = set(row.registered())
        wanted = {object_key("demo", world.epoch, name) for name in wishes}
        if registered != wanted:
            return f"{application.device} wishes for {len(wanted)} objects, its Registrar has {len(registered)}"
        if row.pending():
            return f"{application.device} has {len(row.pending())} registrations pending"
        if any(not self._comes_again(world, application, waiting) for waiting in row.waiting()):
            return f"{application.device} has not acknowledged everything"
        for key in wanted:
            copies = {copy.client for copy in read_copies(world.stores.look([object_row(key, partitions)])[object_row(key, partitions)])}
            if client not in copies:
                return f"the Matcher does not know that {application.device} is registered for {key!r}"
        return None

    def _comes_again(self, world: World, application: Application, waiting: Waiting) -> bool:
        """Nobody waits for the write of an acknowledgement: if it failed, the client is told once more at its next heartbeat."""
        if world.knobs.heartbeat_s < _LONG_HEARTBEAT_S:
            return False
        marks = application.core.handover._marks.get(name_of(waiting.object))
        if marks is None:
            return False
        if waiting.version is None:
            return waiting.seqno <= marks.unknown_acknowledged
        return (world.epoch, waiting.version) <= marks.acknowledged


class NothingUnfinished(Checker):
    """At rest no Registrar has anything left to do: nothing to repeat, no row to look at."""

    def reason(self, world: World) -> str | None:
        for gateway in world.living_gateways():
            registrar = gateway.registrar
            left = sorted(registrar.recovery.unfinished) or sorted(registrar.rounds.marked)
            if left:
                return f"{gateway.member_id} has unfinished work for {len(left)} clients, such as {left[0]}"
        return None


class Departed(Checker):
    """Whoever was told that it is forgotten is: its id is nobody's, whatever came late."""

    def __init__(self) -> None:
        self.asked_to: set[ClientId] = set()
        self._gone: set[ClientId] = set()

    def asked(self, client: ClientId) -> None:
        self.asked_to.add(client)

    def told(self, client: ClientId) -> None:
        """The service said so."""
        self._gone.add(client)

    def reason(self, world: World) -> str | None:
        for client in sorted(self._gone):
            row = ClientRow(client, world.stores.rows.get(client_row(client, world.settings.partitions), {}).values(), world.epoch)
            if row.created is not None:
                raise self.broken(f"{client} signed out and was told that it is forgotten, but is still there")
        return None


class TwinsTold(Checker):
    """Of two processes that run with one state, one is told so, and stops."""

    def reason(self, world: World) -> str | None:
        for twin in world.clones:
            original = world.applications[twin.number]
            one_id = world.client_of(twin) == world.client_of(original) if twin.running and original.running else False
            if one_id and not (twin.stopped or original.stopped):
                return f"two processes run as {twin.device}, and neither knows"
        return None


class WorkDone(Checker):
    """Everything that was published is accepted, and the pipeline has matched all there is, and brought home what it had put aside."""

    def reason(self, world: World) -> str | None:
        if world.backend.busy:
            return "a backend is still publishing"
        if any(operator.busy for operator in world.operators):
            return "an operator is still waiting for an answer"
        lag = world.lag()
        if lag:
            return f"{lag} records of the feed are not matched"
        aside = sum(len(cells) for row, cells in world.stores.rows.items() if row.table == SCRATCH)
        return f"{aside} cells are in scratch" if aside else None


class QueuesBounded(Checker):
    """What waits for a client is at most one entry per object and kind; caches keep to their limits."""

    def reason(self, world: World) -> str | None:
        for gateway in world.living_gateways():
            self._check(world, gateway.registrar)
        for application in world.applications:
            if application.running and len(application.queue) > 2 * max(1, world.knobs.objects):
                raise self.broken(f"{application.device} has {len(application.queue)} notifications in its hands")
        return None

    def _check(self, world: World, registrar: Registrar) -> None:
        for session in registrar.sessions.values():
            if len(session.outstanding) > 2 * world.knobs.objects:
                raise self.broken(f"{len(session.outstanding)} notifications are outstanding for one of {world.knobs.objects} objects")
        if len(registrar.rows) > world.settings.rows_cached_max:
            raise self.broken(f"{len(registrar.rows)} rows are cached")


class NoStorm(Checker):
    """When all is at rest, nobody says more than heartbeats and keepalives need; and what happens then costs a few messages or records."""

    def at_rest(self, world: World, seconds: float, messages: int) -> None:
        if messages > self._idle(world, seconds):
            raise self.broken(f"{messages} messages in {seconds:g} s of rest, for {len(world.applications)} clients")

    def after_updates(self, world: World, seconds: float, messages: int, listeners: int) -> None:
        """`listeners`: who is to hear of an update, each counted for each."""
        if messages > self._idle(world, seconds) + 4 * listeners + 10:
            raise self.broken(f"{messages} messages in {seconds:g} s, for updates of which {listeners} were to hear")

    def after_registrations(self, operations: int, records: int) -> None:
        if records > 2 * operations + 10:
            raise self.broken(f"{operations} registrations became {records} records")

    def _idle(self, world: World, seconds: float) -> float:
        demo = world.settings.applications["demo"]
        clients = sum(application.running for application in world.applications)
        return clients * (2 * seconds / demo.keepalive_s + 2 * seconds / demo.heartbeat_s + 4) + 10


class Watch:
    """Tells all checkers what an application was told."""

    def __init__(self, checkers: Sequence[Checker]) -> None:
        self.checkers = tuple(checkers)

    def notified(self, application: Application, notification: Notification) -> None:
        application.world.tell(
            application.device, f"is told {notification.object} {'unknown' if notification.version is None else notification.version}"
        )
        for checker in self.checkers:
            checker.notified(application, notification)
