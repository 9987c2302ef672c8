"""Thialfi 4.2, 4.2.1, 4.2.2 and 4.2.3: blind writes, the layout of Table 2, what is in memory, how clients are reached."""

from __future__ import annotations

import inspect

from roskva.matcher.cells import REG as MATCHER_REG
from roskva.matcher.cells import VERSION, object_row, read_version, registration_cell, version_cell
from roskva.matcher.core import accept
from roskva.model import ClientId, object_key, partition_of, session_of
from roskva.registrar.cells import ACKNOWLEDGED, CREATED, LOG, PENDING, REG, SEEN, SEQNO, UNKNOWN, WAITING, client_row, log_cell
from roskva.registrar.core import acknowledge
from roskva.registrar.row import ClientRow
from tests.paper.stage import X, client_of, session_at
from tests.properties.application import Application
from tests.properties.pipeline import live_cells
from tests.properties.store import PARTITIONS
from tests.properties.world import World


def test_4_2_state_changes_are_blind_writes(world: World) -> None:
    """Changes become writes that need no read before them: what to write is decided from the events alone."""
    assert list(inspect.signature(accept).parameters) == ["batch", "partitions", "incarnation_of"]
    world.pipeline_runs = False
    world.publish(b"x", 1)
    world.table.trace.clear()
    world.pipeline.begin()
    world.step(world.pipeline.tasks[0])
    assert [kind for kind, _ in world.table.trace] == ["write"]


def test_4_2_1_nothing_is_overwritten_the_latest_version_of_a_cell_is_read() -> None:
    """Cells are named by row, column and version; a query reads the latest, so writes may come in any order."""
    cells = [registration_cell(ClientId("c"), seqno, "phone", registered=seqno != 2) for seqno in (1, 2, 3)]
    assert live_cells(cells) == live_cells(cells[::-1]) == {MATCHER_REG + b"c": cells[2]}
    versions = [version_cell(version, "", 1) for version in (4, 9, 7)]
    assert live_cells(versions)[VERSION].timestamp == 9


def test_4_2_1_the_two_views_are_separate_tables_keyed_by_the_partitioning_keys(world: World, registered: Application) -> None:
    """Registrar and Matcher state are in separate tables; the partitioning keys are the row keys."""
    client = client_of(world, registered)
    assert {mutation.row.table for mutation in world.table.log} == {"registrar", "matcher"}
    assert client_row(client, PARTITIONS) in world.table.rows
    assert object_row(X, PARTITIONS) in world.table.rows
    assert object_row(X, PARTITIONS).partition == partition_of(X, PARTITIONS)


def test_4_2_1_a_matcher_row_holds_version_its_source_and_the_registered_clients(world: World, registered: Application) -> None:
    """Each Matcher row has the latest version, the application id of the client that made it, and the registered clients."""
    world.publish(b"x", 3, source=registered)
    world.run(1)
    row = world.matcher_row(b"x")
    known = read_version(row)
    assert known is not None
    assert (known.version, known.source) == (3, registered.device)
    assert set(row) == {VERSION, MATCHER_REG + client_of(world, registered).encode()}


def test_4_2_1_a_registrar_row_holds_what_table_2_names(world: World) -> None:
    """Each Registrar row has the application id, the latest seqno, the registrations, what is unacknowledged and what is pending.

    Here a notification's cell names the registration that it answers, so that an old acknowledgement cannot clear a new one's.
    """
    world.publish(b"x", 3)
    application = world.add(prompt=False)
    application.register(b"x")
    application.register(b"y")
    world.run(1)
    client = client_of(world, application)
    y = object_key("demo", 0, b"y")
    key = client_row(client, PARTITIONS)
    cells = world.table.read([key])[key]
    row = ClientRow(client, cells.values())
    standing = row.standing(X)
    assert standing is not None
    expected = {CREATED, SEQNO, SEEN, REG + X, REG + y, PENDING + X, PENDING + y, log_cell(X, standing.seqno, 3, WAITING).name}
    assert set(cells) == expected | {UNKNOWN + y}
    assert cells[CREATED].timestamp == 0
    assert cells[REG + X].timestamp == standing.seqno


def test_4_2_1_presence_is_kept_in_memory(world: World) -> None:
    """The paper keeps a client's address in its row while it is online.

    Here presence is the session in the Registrar's memory: to come and go is no write, and a restart asks the gateways again.
    """
    application = world.add()
    world.run(1)
    before = len(world.table.log)
    world.disconnect(application, noticed=True)
    world.run(2)
    assert world.session_of(application) is not None
    assert len(world.table.log) == before


def test_4_2_1_an_old_acknowledgement_does_not_clear_what_a_new_registration_yields() -> None:
    """Clearing names one cell of one registration: version 7 acknowledged under the first says nothing under the second."""
    cells = [acknowledge(X, 1, 7), log_cell(X, 2, 7, WAITING)]
    assert [cell.value for _, cell in sorted(live_cells(cells).items())] == [ACKNOWLEDGED, WAITING]
    assert all(name.startswith(LOG) for name in live_cells(cells))


def test_4_2_1_the_last_seqno_is_written_whenever_one_is_used(world: World) -> None:
    """A cell records the last sequence number in the same write that uses it, so that numbers always increase, over any crash."""
    application = world.add()
    for operation in (application.register, application.unregister, application.register):
        operation(b"x")
        world.run(1)
    for mutation in world.table.log:
        used = [cell.timestamp for cell in mutation.cells if cell.name.startswith((REG, PENDING)) and cell.value != b"2"]
        if mutation.row.table == "registrar" and used:
            assert [cell.timestamp for cell in mutation.cells if cell.name == SEQNO] == [max(used)]
    before = world.row_of(client_of(world, application)).seqno
    world.restart_registrar(links_break=True)
    application.unregister(b"x")
    world.run(5)
    assert world.row_of(client_of(world, application)).seqno > before


def test_4_2_2_the_digest_of_each_online_client_is_in_memory(world: World, registered: Application) -> None:
    """Registrars cache the registration digest of each client that is online, but not its registrations."""
    session = session_at(world, registered)
    assert session.summary == world.row_of(session.client).digest.summary()
    world.model.cached.clear()
    world.table.trace.clear()
    before = len(world.server_said)
    registered.core._outbox.heartbeat_due = world.now
    registered.call(registered.core.tick)
    world.pump()
    assert world.server_said[before].summary == session.summary
    assert world.table.trace == []


def test_4_2_2_all_that_is_in_memory_may_be_dropped(world: World) -> None:
    """Memory holds operations in progress and a little about online clients; all of it is found again in the table."""
    slow, prompt = world.add(prompt=False), world.add()
    for application in (slow, prompt):
        application.register(b"x")
    world.run(1)
    world.pipeline_runs = False
    world.publish(b"x", 5)
    prompt.register(b"y")
    world.pump()
    world.restart_registrar(links_break=True)
    world.pipeline.die(orphans=False)
    world.heal()
    assert slow.missing(b"x") == prompt.missing(b"x") == []


def test_4_2_3_what_is_unacknowledged_is_found_in_the_table_after_a_restart(world: World) -> None:
    """Delivery is made reliable by scanning the Registrar's table, not its memory, for unacknowledged notifications."""
    application = world.add(prompt=False)
    application.register(b"x")
    world.publish(b"x", 5)
    world.run(1)
    world.restart(application, keep_state=True)
    world.restart_registrar(links_break=True)
    world.run(5)
    assert [one.version for one in application.history] == [5]


def test_4_2_3_what_others_wrote_for_an_online_client_is_found_by_its_mark(world: World, registered: Application) -> None:
    """The scan finds what is stored for online clients. Here it follows marks, so that what the pipeline wrote in a Registrar's stead
    reaches the client within seconds."""
    world.reachable = False
    world.publish(b"x", 5)
    world.run(2)
    assert world.table.marks
    assert registered.store[b"x"] == 5


def test_4_2_3_online_clients_are_told_during_propagation(world: World, registered: Application) -> None:
    """To be fast, notifications are sent to online clients during Matcher propagation, without waiting for any scan."""
    started = world.now
    world.publish(b"x", 5)
    world.pump()
    assert registered.store[b"x"] == 5
    assert world.now == started


def test_4_2_3_undelivered_notifications_are_buffered_in_memory_and_resent_soon(world: World, registered: Application) -> None:
    """The paper plans to buffer undelivered notifications in memory. Here this is so: the first resend comes after a second, unread."""
    world.flowing = False
    world.publish(b"x", 5)
    world.run(0.5)
    world.in_flight.clear()
    world.flowing = True
    world.table.trace.clear()
    world.run(1)
    assert registered.store[b"x"] == 5
    assert not [row for kind, row in world.table.trace if kind == "read"]


def test_4_2_1_a_new_session_outranks_the_seqnos_of_all_before_it(world: World, registered: Application) -> None:
    """Sequence numbers always increase, also over a handshake that another server answered."""
    before = world.row_of(client_of(world, registered)).seqno
    world.restart(registered, keep_state=True)
    world.run(2)
    after = world.row_of(client_of(world, registered)).seqno
    assert session_of(after) == session_of(before) + 1
