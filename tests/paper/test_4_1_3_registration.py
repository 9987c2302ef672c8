"""Thialfi 4.1.3: the five steps of a registration, and the Registration Sync Protocol."""

from __future__ import annotations

import hashlib

from roskva.matcher.cells import read_copies
from roskva.matcher.core import accept, collapse, match
from roskva.model import OUTCOME_UNKNOWN, OUTCOME_VERSION, ClientId, Propagation, Registration, Update, object_key
from roskva.protocol.messages import REGISTERED
from roskva.protocol.summaries import SetDigest
from roskva.registrar.cells import PENDING, REG, SEQNO
from tests.paper.stage import X, begin_task, client_of, notified, session_at
from tests.properties.application import Application
from tests.properties.pipeline import FEED_INCARNATION, copies_of, live_cells
from tests.properties.store import PARTITIONS, Fault
from tests.properties.world import SETTINGS, World


def statements(world: World, since: int = 0) -> int:
    """How many registrations clients sent, one by one or in a sync."""
    said = world.clients_said[since:]
    return sum(len(message.register) + len(message.sync.objects or () if message.sync else ()) for message in said)


def test_4_1_3_step_1_the_client_sends_a_registration_with_the_object(world: World) -> None:
    """The client library sends a message that names the object which it registers for."""
    application = world.add()
    world.run(1)
    before = len(world.clients_said)
    application.register(b"x")
    world.pump()
    assert [[one.object for one in message.register] for message in world.clients_said[before:] if message.register] == [["x"]]


def test_4_1_3_step_2_the_registrar_orders_registrations_by_the_clients_sequence_number(world: World) -> None:
    """The Registrar picks an order by giving each operation the next sequence number of its client."""
    application = world.add()
    world.run(1)
    seqnos = []
    for operation in (application.register, application.unregister, application.register):
        operation(b"x")
        world.run(1)
        standing = world.row_of(client_of(world, application)).standing(X)
        assert standing is not None
        seqnos.append(standing.seqno)
    assert seqnos == sorted(set(seqnos))


def test_4_1_3_step_2_registration_is_written_with_pending_marker_in_one_write(world: World) -> None:
    """The Registrar writes the registration into the client's record, and adds it to what is pending: in one write, with the seqno."""
    application = world.add()
    world.run(1)
    world.pipeline_runs = False
    before = len(world.table.log)
    application.register(b"x")
    world.pump()
    (mutation,) = world.table.log[before:]
    cells = {cell.name: cell.timestamp for cell in mutation.cells}
    assert set(cells) == {REG + X, PENDING + X, SEQNO}
    assert len(set(cells.values())) == 1


def test_4_1_3_step_3_the_matcher_gets_the_registration_and_the_device(world: World, registered: Application) -> None:
    """The registration is forwarded to the object's Matcher with the application id of the client (here: device), and copied there."""
    (copy,) = read_copies(world.matcher_row(b"x"))
    assert (copy.client, copy.device) == (client_of(world, registered), registered.device)


def test_4_1_3_step_3_propagation_is_repeated_until_it_succeeds(world: World) -> None:
    """Propagation is repeated until it succeeds or the process dies; here the feed and the marker survive that too."""
    application = world.add()
    world.run(1)
    world.pipeline_runs = False
    world.registrar_steps.faults.extend([Fault.NONE, Fault.NONE, Fault.DIED_BEFORE])  # mark, write, and no append
    application.register(b"x")
    world.run(1)
    world.pipeline_steps.faults.extend([Fault.LOST, Fault.LANDED, Fault.DIED_AFTER, Fault.LOST])
    world.pipeline_runs = True
    world.run(20)
    assert list(copies_of(world.table, X)) == [client_of(world, application)]
    assert application.confirmed[b"x"]


def test_4_1_3_step_4_the_version_is_read_after_the_copy_is_written(world: World, registering: Application) -> None:
    """After propagation succeeded, the latest version is read from the Matcher: in this order, so that no update falls between."""
    world.table.trace.clear()
    task = begin_task(world)
    world.step(task)
    world.step(task)
    assert [(kind, row.table) for kind, row in world.table.trace] == [("write", "matcher"), ("read", "matcher")]


def test_4_1_3_step_4_whichever_of_update_and_registration_comes_second_sees_the_other(world: World) -> None:
    """Registrar post-propagation closes the gap between a registration and an update: in any interleaving of their steps, one tells."""
    for order in ("UURR", "URUR", "URRU", "RUUR", "RURU", "RRUU"):
        world = World()
        application = world.add()
        world.run(1)
        world.pipeline_runs = False
        application.register(b"x")
        world.pump()
        world.publish(b"x", 1)
        world.pipeline.begin(apart=True)
        tasks = {"U" if task.batch.changes else "R": task for task in world.pipeline.tasks}
        for letter in order:
            world.step(tasks[letter])
        assert any(told.version == 1 for task in tasks.values() for told in task.untold), order
        world.heal()
        assert application.store[b"x"] == 1


def test_4_1_3_step_4_the_registration_yields_the_latest_version(world: World) -> None:
    """The Registrar writes a pending notification at the object's latest version for the client that registered."""
    world.publish(b"x", 3)
    world.run(1)
    application = world.add(prompt=False)
    application.register(b"x")
    world.run(1)
    row = world.row_of(client_of(world, application))
    assert [(one.object, one.version) for one in row.waiting()] == [(X, 3)]


def test_4_1_3_step_4_an_unknown_version_takes_its_number_from_the_clients_seqno(world: World) -> None:
    """If no version is known the notification is of unknown version, with the client's sequence number in its place."""
    application = world.add(prompt=False)
    application.register(b"x")
    world.run(1)
    row = world.row_of(client_of(world, application))
    standing = row.standing(X)
    assert standing is not None
    assert [(one.object, one.version, one.seqno) for one in row.waiting()] == [(X, None, standing.seqno)]


def test_4_1_3_step_4_a_version_held_is_not_told_again() -> None:
    """Register takes the version that the client has: nothing is told if the Matcher knows a version and it is not greater."""

    def answer(held: int | None, known: int | None) -> Propagation:
        batch = collapse([], [Registration(ClientId("c"), X, 1, True, "phone", held)])
        writes = list(accept(batch, PARTITIONS, lambda key: FEED_INCARNATION).writes)
        if known is not None:
            earlier = collapse([Update(X, known, "")], [])
            writes += accept(earlier, PARTITIONS, lambda key: FEED_INCARNATION).writes
        row = live_cells([cell for mutation in writes for cell in mutation.cells])
        (told,) = match(batch, {writes[0].row: row}, PARTITIONS, lambda key: FEED_INCARNATION)
        return told

    assert answer(held=7, known=7).outcome not in (OUTCOME_VERSION, OUTCOME_UNKNOWN)
    assert answer(held=6, known=7)[3:] == (OUTCOME_VERSION, 7)
    assert answer(held=7, known=None).outcome == OUTCOME_UNKNOWN
    assert answer(held=None, known=7)[3:] == (OUTCOME_VERSION, 7)


def test_4_1_3_step_5_confirmation_follows_propagation_and_ends_what_is_pending(world: World, registering: Application) -> None:
    """The client is told that it is registered when the Matcher has its copy, and the operation leaves the pending set."""
    task = begin_task(world)
    for _ in range(4):
        row = world.row_of(client_of(world, registering))
        assert b"x" not in registering.confirmed
        assert row.pending_count == 1
        world.step(task)
        world.now += 0.1
        world.flowing = world.feed.lag() == 0
        world.pump()
    assert registering.confirmed[b"x"]
    assert world.row_of(client_of(world, registering)).pending_count == 0


def test_4_1_3_step_5_the_marker_ends_together_with_the_notification_in_one_write(world: World) -> None:
    """Between the two steps nothing can be lost: what is unacknowledged is written in the same write that ends the marker."""
    application = world.add(prompt=False)
    application.register(b"x")
    world.run(1)
    (done,) = [
        mutation
        for mutation in world.table.log
        if mutation.row.table == "registrar" and any(cell.name == PENDING + X and cell.value == b"2" for cell in mutation.cells)
    ]
    assert len(done.cells) == 2


def test_4_1_3_unregistration_is_analogous(world: World, registered: Application) -> None:
    """Unregistrations go the same way: ordered, written with a marker, propagated, confirmed. Then nothing more is told."""
    registered.unregister(b"x")
    world.run(1)
    assert registered.confirmed[b"x"] is False
    assert copies_of(world.table, X) == {}
    before = len(world.server_said)
    world.publish(b"x", 1)
    world.run(1)
    assert not notified(world, before)


def test_4_1_3_every_client_message_carries_a_digest_of_its_registrations(world: World) -> None:
    """Each message from the client has a digest of the objects that it is registered for."""
    application = world.add()
    application.register(b"x")
    application.register(b"y")
    world.publish(b"x", 1)
    world.run(200)
    assert all(message.summary is not None for message in world.clients_said)
    assert world.clients_said[-1].summary == SetDigest([b"x", b"y"]).summary()


def test_4_1_3_every_server_message_carries_a_digest_of_what_the_server_has(world: World) -> None:
    """Each message from the server has the digest of the client's registrations as the server knows them."""
    application = world.add()
    application.register(b"x")
    world.publish(b"x", 1)
    world.run(200)
    assert all(message.summary is not None for message in world.server_said)
    assert world.server_said[-1].summary == SetDigest([b"x"]).summary()


def test_4_1_3_the_digest_is_a_sum_of_hashes() -> None:
    """The paper computes the digest with HMAC-SHA1 over the set.

    Here it is the sum of SHA-256 of each name, modulo 2^128: a change costs one addition, and the order does not matter.
    """
    digest = SetDigest([b"x", b"y", b"z"])
    digest.remove(b"y")
    assert digest.summary() == SetDigest([b"z", b"x"]).summary()
    expected = sum(int.from_bytes(hashlib.sha256(name).digest()[:16], "big") for name in (b"x", b"z")) % 2**128
    assert digest.summary().digest == f"{expected:032x}"
    assert digest.summary().count == 2


def test_4_1_3_a_client_that_finds_a_discrepancy_resends_its_registrations(world: World) -> None:
    """When the client sees a digest that differs from its own, with nothing on its way, it states its registrations."""
    application = world.add()
    application.register(b"x")
    application.register(b"y")
    world.run(1)
    client = client_of(world, application)
    _forget_registration(world, client)
    before = len(world.clients_said)
    world.run(2 * SETTINGS.heartbeat_s)
    assert [sorted(one.object for one in message.sync.objects or ()) for message in world.clients_said[before:] if message.sync] == [
        ["x", "y"]
    ]
    assert X in world.row_of(client).registered()


def test_4_1_3_a_server_that_finds_a_discrepancy_asks_the_client_to_resend(world: World, registered: Application) -> None:
    """When the server sees a digest that differs from its own, it requests that the client resend. Here that is a hint."""
    _forget_registration(world, client_of(world, registered))
    session = session_at(world, registered)
    session.take(world.model.row(session.client, fresh=True), world.now)
    world.flowing = False
    registered.core._outbox.heartbeat_due = world.now
    registered.call(registered.core.tick)
    world.deliver(world.in_flight.pop())
    assert world.server_said[-1].sync_request is not None


def test_4_1_3_large_sets_are_synchronized_by_subtrees(world: World) -> None:
    """Merkle trees make the synchronization of many objects efficient.

    Here a set of more than 256 is compared by 256 buckets, and only the buckets that differ are stated.
    """
    application = world.add()
    for number in range(400):
        application.register(b"object-%d" % number)
    world.run(5)
    client = client_of(world, application)
    _forget_registration(world, client, b"object-7")
    before = len(world.clients_said)
    world.run(2 * SETTINGS.heartbeat_s)
    syncs = [message.sync for message in world.clients_said[before:] if message.sync]
    assert [(sync.summaries is not None, len(sync.buckets or ())) for sync in syncs] == [(True, 0), (False, 1)]
    assert 1 <= len(syncs[1].objects or ()) < 20
    assert world.row_of(client).digest.count == 400


def test_4_1_3_a_sync_is_authoritative_and_applies_only_the_differences(world: World) -> None:
    """After the exchange client and server agree; what both had is left alone."""
    application = world.add()
    for name in (b"x", b"y"):
        application.register(name)
    world.run(1)
    _forget_registration(world, client_of(world, application))
    events = len(world.feed.topics["registrations"])
    world.run(2 * SETTINGS.heartbeat_s)
    assert len(world.feed.topics["registrations"]) == events + 1
    assert set(world.row_of(client_of(world, application)).registered()) == {X, object_key("demo", 0, b"y")}


def test_4_1_3_the_application_restates_its_registrations_at_restart(world: World, registered: Application) -> None:
    """Registrations are not kept on the client's disk: at a restart the application is asked to state them again."""
    assert registered.state is not None
    assert b'"x"' not in registered.state
    world.restart(registered, keep_state=True)
    assert registered.reissues == 1
    assert set(registered.core.desired) == {b"x"}


def test_4_1_3_when_digests_match_after_a_restart_no_registration_is_resent(world: World) -> None:
    """In the normal case the digests agree after a restart, and nothing is sent again."""
    application = world.add()
    for name in (b"x", b"y", b"z"):
        application.register(name)
    world.run(1)
    before = len(world.clients_said)
    world.restart(application, keep_state=True)
    world.run(100)
    assert application.core.in_sync(world.now)
    assert all(application.confirmed.values())
    assert statements(world, before) == 0


def test_4_1_3_a_discrepancy_after_a_restart_is_resolved_by_the_sync(world: World) -> None:
    """If the application wishes for something else after its restart, the digests differ and the sync puts that right."""
    application = world.add()
    for name in (b"x", b"y"):
        application.register(name)
    world.run(1)
    application.wishes = {b"y", b"z"}
    world.restart(application, keep_state=True)
    world.heal()
    assert {key[-1:] for key in world.row_of(client_of(world, application)).registered()} == {b"y", b"z"}


def test_4_1_3_a_repeated_registration_reuses_its_seqno(world: World, registering: Application) -> None:
    """The library repeats what is not answered. Here a repeat of what is pending adds no number, no write and no record."""
    log, records = len(world.table.log), len(world.feed.topics["registrations"])
    before = len(world.clients_said)
    world.run(4)
    assert statements(world, before) >= 1
    assert (len(world.table.log), len(world.feed.topics["registrations"])) == (log, records)
    world.pipeline_runs = True
    world.run(20)
    assert registering.confirmed[b"x"]
    assert {status.state for message in world.server_said for status in message.status} == {REGISTERED}


def _forget_registration(world: World, client: ClientId, name: bytes = b"x") -> None:
    """The client's row loses a registration, by no fault of the protocol."""
    for key, row in world.table.rows.items():
        if key.table == "registrar" and key.key == client.encode():
            for cell in [REG + object_key("demo", 0, name), PENDING + object_key("demo", 0, name)]:
                row.pop(cell, None)
