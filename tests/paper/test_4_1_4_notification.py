"""Thialfi 4.1.4: the six steps of a notification."""

from __future__ import annotations

from roskva.matcher.cells import read_version
from roskva.matcher.core import accept, collapse, match
from roskva.model import OUTCOME_UPDATE, ClientId, Propagation, Registration, Update
from roskva.registrar.cells import LOG
from tests.paper.stage import X, begin_task, notified, take_offline
from tests.properties.pipeline import FEED_INCARNATION, Stage, live_cells
from tests.properties.registrar import ACK_WAIT_S
from tests.properties.store import PARTITIONS
from tests.properties.world import SETTINGS, World


def register_clients(world: World, count: int = 1, prompt: bool = True) -> None:
    for _ in range(count):
        world.add().register(b"x")
    world.run(1)
    for application in world.applications:
        application.prompt = prompt


def logged(world: World) -> int:
    """How many notifications of versions were ever written into clients' rows."""
    return sum(cell.name.startswith(LOG) for mutation in world.table.log for cell in mutation.cells)


def test_4_1_4_step_1_published_updates_are_buffered_while_nobody_consumes_them(world: World) -> None:
    """A publish is acknowledged after a reliable handoff; while the consumer is away, updates wait in a persistent log."""
    register_clients(world)
    world.pipeline_runs = False
    world.publish(b"x", 4)
    world.run(100)
    assert b"x" not in world.applications[0].store
    world.pipeline_runs = True
    world.run(1)
    assert world.applications[0].store[b"x"] == 4


def test_4_1_4_step_2_updates_are_taken_in_small_batches_by_the_objects_partition(world: World) -> None:
    """The Bridge takes the updates in small batches and delivers each to the Matcher of its object: one task per partition."""
    world.pipeline_runs = False
    for number in range(20):
        world.publish(b"object-%d" % number, 1)
    world.pipeline.begin()
    objects = [set(task.batch.changes) for task in world.pipeline.tasks]
    assert len(objects) == PARTITIONS
    assert objects[0].isdisjoint(objects[1])
    assert sum(map(len, objects)) == 20


def test_4_1_4_step_3_the_matcher_records_the_version_before_it_looks_for_registrations(world: World) -> None:
    """The Matcher updates the object's record, and after that finds out who is registered."""
    register_clients(world)
    world.pipeline_runs = False
    world.publish(b"x", 1)
    world.table.trace.clear()
    task = begin_task(world)
    world.step(task)
    known = read_version(world.matcher_row(b"x"))
    assert known is not None
    assert known.version == 1
    world.step(task)
    assert [(kind, row.table) for kind, row in world.table.trace[:1]] == [("write", "matcher")]
    assert task.untold


def test_4_1_4_step_3_registrars_get_tuples_of_client_object_and_version() -> None:
    """The Registrars are sent (client, object, version). Here with the seqno of the registration that it answers."""
    batch = collapse([Update(X, 3, ""), Update(X, 5, ""), Update(X, 4, "")], [Registration(ClientId("c"), X, 9, True, "phone")])
    accepted = accept(batch, PARTITIONS, lambda key: FEED_INCARNATION)
    row = live_cells([cell for mutation in accepted.writes for cell in mutation.cells])
    told = match(batch, {accepted.writes[0].row: row}, PARTITIONS, lambda key: FEED_INCARNATION)
    assert told[0] == Propagation(ClientId("c"), X, 9, OUTCOME_UPDATE, 5)


def test_4_1_4_step_4_an_unacknowledged_notification_is_stored_before_the_registrar_responds(world: World) -> None:
    """The Registrar stores the pending notification, then responds to the Matcher."""
    register_clients(world, prompt=False)
    world.pipeline_runs = False
    world.publish(b"x", 1)
    task = begin_task(world)
    for _ in range(3):
        world.step(task)
    assert world.step(task) is False, "it responded though the notification is neither stored nor acknowledged"
    world.now += 2 * ACK_WAIT_S
    world.step(task)
    assert task.stage is Stage.DONE
    assert logged(world) == 1


def test_4_1_4_step_4_a_notification_acknowledged_within_50_ms_is_never_written(world: World) -> None:
    """The paper stores every notification before the response.

    Here the client is told first; only what is unacknowledged after 50 ms is written. Until then the feed still has the update.
    """
    register_clients(world, count=3)
    world.publish(b"x", 1)
    world.run(5)
    assert all(application.store[b"x"] == 1 for application in world.applications)
    assert logged(world) == 0


def test_4_1_4_step_4_notifications_for_offline_clients_are_stored(world: World) -> None:
    """A client that is offline is told later: its notification is stored."""
    register_clients(world)
    take_offline(world, world.applications[0])
    world.publish(b"x", 1)
    world.run(1)
    assert logged(world) == 1
    world.reconnecting = True
    world.run(5)
    assert world.applications[0].store[b"x"] == 1


def test_4_1_4_step_5_the_operation_ends_when_all_registrars_have_responded(world: World) -> None:
    """The Matcher forgets the operation only when every Registrar answered. Here: only then are the feed's offsets committed."""
    register_clients(world, prompt=False)
    world.pipeline_runs = False
    world.publish(b"x", 1)
    lag = world.feed.lag()
    task = begin_task(world)
    for _ in range(4):
        world.step(task)
        assert world.feed.lag() == lag
    world.now += 2 * ACK_WAIT_S
    world.step(task)
    assert world.feed.lag() == 0


def test_4_1_4_step_5_a_registrar_that_dies_before_it_responds_is_asked_again(world: World) -> None:
    """Without a response the operation stays, and is done again."""
    register_clients(world, prompt=False)
    world.pipeline_runs = False
    world.publish(b"x", 1)
    task = begin_task(world)
    for _ in range(3):
        world.step(task)
    world.restart_registrar(links_break=True)
    world.step(task)
    assert task.stage is Stage.TELL
    world.heal()
    assert world.applications[0].store[b"x"] == 1


def test_4_1_4_step_6_unacknowledged_notifications_are_resent_to_clients_that_are_online(world: World) -> None:
    """Registrars resend what is unacknowledged, every 60 seconds. Here from 1 s, doubling, up to 60 s (8 s in these tests)."""
    register_clients(world, prompt=False)
    world.publish(b"x", 1)
    world.run(0.1)
    before = len(world.server_said)
    world.run(40)
    repeats = notified(world, before)
    assert 5 <= len(repeats) <= 40 / SETTINGS.resend_max_s + 4
    world.applications[0].deal_with()
    world.run(1)
    before = len(world.server_said)
    world.run(40)
    assert not notified(world, before)
