"""Thialfi 5: why every registered client always eventually learns the latest version. The whole of it: tests/properties."""

from __future__ import annotations

from roskva.registrar.cells import PENDING, REG
from tests.paper.stage import X, begin_task, client_of, take_offline
from tests.properties.application import Application
from tests.properties.pipeline import Stage, copies_of
from tests.properties.store import Fault
from tests.properties.world import SETTINGS, World


def test_5_a_client_that_registers_always_eventually_learns_the_latest_version(world: World) -> None:
    """The reliable delivery property, through a long run of faults of every kind; tests/properties looks for the worst order."""
    applications = [world.add(), world.add(prompt=False)]
    for number in range(40):
        application = applications[number % 2]
        world.lossy = number % 3 == 0
        world.reachable = number % 5 != 0
        application.register(b"x")
        world.publish(b"x", number + 1)
        world.run(0.4)
        if number % 7 == 0:
            world.restart_registrar(links_break=number % 2 == 0)
        if number % 11 == 0:
            world.pipeline.die(orphans=True, checkpoint_lost=number % 2 == 0)
        if number % 13 == 0:
            world.restart(application, keep_state=number % 2 == 0)
        world.run(3)
    world.heal()
    assert [application.missing(b"x") for application in applications] == [[], []]


def test_5_intermediate_versions_may_be_suppressed(world: World, registered: Application) -> None:
    """Reliability is one-sided: the latest version is learned, those between may not be."""
    world.pipeline_runs = False
    for version in range(1, 100):
        world.publish(b"x", version)
    world.pipeline_runs = True
    world.run(1)
    assert [one.version for one in registered.history if not one.unknown] == [99]


def test_5_a_client_away_for_long_gets_one_notification_per_changed_object(world: World) -> None:
    """What waits for a client does not grow with the number of updates."""
    application = world.add()
    for name in (b"x", b"y"):
        application.register(name)
    world.run(1)
    take_offline(world, application)
    for version in range(1, 200):
        world.publish(b"x", version)
        world.publish(b"y", version)
        world.run(0.2)
    before = len(world.server_said)
    world.reconnecting = True
    world.run(10)
    told = [(one.object, one.version) for message in world.server_said[before:] for one in message.notify]
    assert sorted(told) == [("x", "199"), ("y", "199")]


def test_5_client_and_registrar_disagreement_is_detected_by_the_next_heartbeat(world: World, registered: Application) -> None:
    """Every message has the digest, heartbeats too, so that any disagreement is found in time, and the sync ends it."""
    client = client_of(world, registered)
    for key, row in world.table.rows.items():
        if key.key == client.encode():
            row.pop(REG + X)
            row.pop(PENDING + X)
    world.model.cached.clear()
    world.run(2.5 * SETTINGS.heartbeat_s)
    assert list(world.row_of(client).registered()) == [X]
    assert registered.core.in_sync(world.now)


def test_5_the_pending_marker_is_set_atomically_and_cleared_only_after_all_dependent_writes(world: World, registering: Application) -> None:
    """The marker lands in the write of the registration, and goes only when the Matcher's write has succeeded."""
    client = client_of(world, registering)
    world.pipeline_steps.faults.append(Fault.LOST)
    task = begin_task(world)
    world.step(task)
    assert task.stage is Stage.WRITE
    assert copies_of(world.table, X) == {}
    assert world.row_of(client).pending_count == 1
    world.step(task)
    assert copies_of(world.table, X) != {}
    assert world.row_of(client).pending_count == 1
    world.pipeline_runs = True
    world.run(1)
    assert world.row_of(client).pending_count == 0


def test_5_the_registrars_writes_to_the_matcher_are_retried_after_any_failure(world: World) -> None:
    """Propagation is retried if anything fails; since all writes are idempotent, repeating them is safe."""
    application = world.add()
    world.run(1)
    world.registrar_steps.faults.extend([Fault.NONE, Fault.DIED_AFTER])  # the row is written; the process dies before it appends
    application.register(b"x")
    world.run(10)
    assert list(copies_of(world.table, X)) == [client_of(world, application)]
    assert application.confirmed[b"x"]


def test_5_an_update_leaves_the_feed_only_after_it_was_written(world: World) -> None:
    """Notifications are removed from the feed only after a successful write at the Matcher. (The scratch table comes later.)"""
    world.pipeline_runs = False
    world.publish(b"x", 1)
    world.pipeline_steps.faults.extend([Fault.LOST] * 3)
    task = begin_task(world)
    for _ in range(3):
        world.step(task)
        assert world.feed.lag() == 1
    world.pipeline_runs = True
    world.run(1)
    assert world.feed.lag() == 0
    assert world.matcher_row(b"x")


def test_5_an_update_that_was_written_is_propagated_even_if_the_matcher_dies(world: World, registered: Application) -> None:
    """Pending work ensures that what is written at the Matcher reaches the Registrars eventually.

    Here the batch is repeated, and a version equal to the one in the row is told again.
    """
    world.pipeline_runs = False
    world.publish(b"x", 1)
    world.pipeline.begin()
    world.step(world.pipeline.tasks[0])
    world.pipeline.die()
    assert world.matcher_row(b"x")
    world.pipeline_runs = True
    world.run(1)
    assert registered.store[b"x"] == 1


def test_5_post_propagation_tells_a_version_that_arrived_before_the_registration(world: World) -> None:
    """The client learns the latest version even if it was published before the client registered."""
    world.publish(b"x", 3)
    world.run(10)
    application = world.add()
    application.register(b"x")
    world.run(1)
    assert application.store[b"x"] == 3


def test_5_if_the_matcher_knows_no_version_the_client_is_told_unknown(world: World, registered: Application) -> None:
    """If no version is present at the Matcher, the registration yields unknown."""
    assert [one.unknown for one in registered.history] == [True]


def test_5_a_notification_is_retained_until_it_is_acknowledged(world: World) -> None:
    """The Registrar keeps a notification until the client acknowledges it, however long that takes."""
    application = world.add(prompt=False)
    application.register(b"x")
    world.publish(b"x", 1)
    world.run(3_000)
    row = world.row_of(client_of(world, application))
    assert [one.version for one in row.waiting()] == [1]
    application.deal_with()
    world.run(1)
    assert list(world.row_of(client_of(world, application)).waiting()) == []


def test_5_a_notification_is_retained_until_a_later_one_supersedes_it(world: World) -> None:
    """A later notification of the object takes the place of the earlier one: then only the later is owed."""
    application = world.add(prompt=False)
    application.register(b"x")
    for version in (1, 2):
        world.publish(b"x", version)
        world.run(2)
    row = world.row_of(client_of(world, application))
    assert [one.version for one in row.waiting()] == [2]
    application.deal_with(0)
    world.run(1)
    assert [one.version for one in world.row_of(client_of(world, application)).waiting()] == [2], "1 also cleared 2"


def test_5_updates_after_the_registration_reached_the_matcher_are_sent_to_the_client(world: World, registered: Application) -> None:
    """A registration eventually reaches the Matcher; every later update of the object is then sent to the client."""
    for version in (1, 2, 3):
        world.publish(b"x", version)
        world.run(1)
        assert registered.store[b"x"] == version
