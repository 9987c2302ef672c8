"""Thialfi 4 (opening), 4.1, 4.1.1 and 4.1.2: techniques, partitions, the state of each server, tokens and presence."""

from __future__ import annotations

from collections import Counter

import pytest

from roskva.config import ApplicationSettings
from roskva.errors import TokenInvalid
from roskva.matcher.cells import read_copies, read_version
from roskva.matcher.forms import Form, check, extract
from roskva.model import Update, object_key, partition_of, rendezvous, session_of
from roskva.protocol.messages import ClientMessage
from roskva.protocol.tokens import Claims
from tests.paper.stage import X, session_at
from tests.properties.application import Application
from tests.properties.pipeline import copies_of
from tests.properties.registrar import DATA_CENTER
from tests.properties.world import SETTINGS, World


def test_4_loss_of_registration_state_at_the_server_is_repaired_by_the_client(world: World, registered: Application) -> None:
    """The client library keeps the registrations and corrects the server where the two differ, so the server may lose them."""
    world.lose_registrar_table()
    world.publish(b"x", 4)
    world.heal()
    assert registered.store[b"x"] == 4


def test_4_a_registration_is_one_write_in_the_clients_view(world: World) -> None:
    """There are two views of the state, by client and by object; a registration commits with one write of the client's row."""
    application = world.add()
    world.run(1)
    world.pipeline_runs = False
    before = len(world.table.log)
    application.register(b"x")
    world.pump()
    assert [mutation.row.table for mutation in world.table.log[before:]] == ["registrar"]


def test_4_an_update_is_one_write_in_the_objects_view(world: World) -> None:
    """An update commits with one write of the object's row, however many clients are registered.

    Here nothing else is written at all for clients that are online and acknowledge at once.
    """
    for _ in range(5):
        world.add().register(b"x")
    world.run(1)
    before = len(world.table.log)
    world.publish(b"x", 2)
    world.run(1)
    assert all(application.store[b"x"] == 2 for application in world.applications)
    assert [mutation.row.table for mutation in world.table.log[before:]] == ["matcher"]


def test_4_every_operation_of_the_servers_may_be_repeated(world: World) -> None:
    """Operations are idempotent: repeating all that ever went through the pipeline changes no row, and shows nobody anything."""
    first, second = world.add(), world.add()
    for application in (first, second):
        application.register(b"x")
    world.publish(b"x", 2)
    second.unregister(b"x")
    world.run(1)
    rows = {key: dict(row) for key, row in world.table.rows.items()}
    shown = [list(application.history) for application in world.applications]
    world.pipeline.die(checkpoint_lost=True)
    world.run(5)
    assert world.feed.lag() == 0
    assert world.table.rows == rows
    assert [application.history for application in world.applications] == shown


def test_4_the_bridge_translates_an_applications_own_form_into_the_standard_one() -> None:
    """Bridges consume application-specific updates and translate them into one standard form."""
    fields = extract(b'{"doc": {"id": "x", "rev": "12"}, "by": "phone"}', Form("doc.id", "doc.rev", "by"))
    assert check("demo", 3, fields) == Update(object_key("demo", 3, b"x"), 12, "phone")  # type: ignore[arg-type]


def test_4_1_clients_and_objects_are_spread_evenly_by_a_hash_of_their_ids() -> None:
    """Each client and object has a partitioning key that begins with a hash of its id, so that load is roughly uniform."""
    counts = Counter(partition_of(object_key("demo", 0, b"user-%d" % number), 4) for number in range(4_000))
    assert all(900 < counts[partition] < 1_100 for partition in range(4))


def test_4_1_each_partition_belongs_to_one_server() -> None:
    """The key space is divided statically and each part is assigned to one server.

    Here the partitions are fixed, and each belongs to one living gateway by rendezvous hashing: if one dies, only its partitions move.
    """
    members = [f"gateway-{number}" for number in range(5)]
    owners = {partition: rendezvous(partition, members) for partition in range(64)}
    assert len(set(owners.values())) == 5
    left = [member for member in members if member != "gateway-2"]
    moved = {partition for partition in owners if rendezvous(partition, left) != owners[partition]}
    assert moved == {partition for partition, owner in owners.items() if owner == "gateway-2"}


def test_4_1_1_the_registrar_keeps_registrations_unacknowledged_notifications_and_a_growing_seqno(world: World) -> None:
    """Per client the Registrar keeps what it is registered for, what it has not acknowledged, and a number that only grows."""
    application = world.add(prompt=False)
    application.register(b"x")
    world.publish(b"x", 1)
    world.run(1)
    session = session_at(world, application)
    row = world.row_of(session.client)
    assert list(row.registered()) == [X]
    assert [(one.object, one.version) for one in row.waiting()] == [(X, 1)]
    seqno = row.seqno
    application.register(b"y")
    world.run(1)
    assert world.row_of(session.client).seqno > seqno


def test_4_1_1_the_matcher_keeps_the_latest_version_and_a_copy_of_the_registered_clients(world: World) -> None:
    """Per object the Matcher keeps the latest version that the backend published, and a copy of who is registered."""
    application = world.add()
    application.register(b"x")
    world.publish(b"x", 1)
    world.publish(b"x", 6)
    world.run(1)
    session = session_at(world, application)
    row = world.matcher_row(b"x")
    known = read_version(row)
    assert known is not None
    assert known.version == 6
    assert [copy.client for copy in read_copies(row)] == [session.client]


def test_4_1_1_the_copy_of_registrations_is_updated_asynchronously(world: World, registering: Application) -> None:
    """The Matcher's copy of the registrations follows the Registrar's after the fact."""
    session = session_at(world, registering)
    assert list(world.row_of(session.client).registered()) == [X]
    assert copies_of(world.table, X) == {}
    world.pipeline_runs = True
    world.run(1)
    assert list(copies_of(world.table, X)) == [session.client]


def test_4_1_1_both_keep_a_set_of_pending_operations(world: World) -> None:
    """Registrars and Matchers know which operations they still have to propagate.

    Here the Registrar's are cells `pending` in the clients' rows; the Matcher's are the records of the feed that are not committed.
    """
    application = world.add()
    world.run(1)
    world.pipeline_runs = False
    application.register(b"x")
    world.publish(b"x", 1)
    world.pump()
    session = session_at(world, application)
    assert [key for key, _, _ in world.row_of(session.client).pending()] == [X]
    assert world.feed.lag() == 2
    world.pipeline_runs = True
    world.run(1)
    assert world.row_of(session.client).pending() == []
    assert world.feed.lag() == 0


def test_4_1_2_a_token_names_client_and_session_and_is_opaque_and_signed(world: World) -> None:
    """A token has two parts, client and session identifier; clients only store it and send it with each message."""
    claims = Claims(world.mint(), "demo", "phone", 3, DATA_CENTER, 1)
    token = world.keyring.sign(claims)
    assert world.keyring.verify(token) == claims
    with pytest.raises(TokenInvalid):
        world.keyring.verify(token[:-2] + ("AA" if token[-2:] != "AA" else "BB"))


def test_4_1_2_every_message_after_the_handshake_carries_the_token(world: World) -> None:
    """The client includes its token in each message after the handshake."""
    application = world.add()
    application.register(b"x")
    world.publish(b"x", 1)
    world.run(300)
    after = [message for message in world.clients_said if message.init is None]
    assert len(after) > 3
    session = session_at(world, application)
    assert {message.token for message in after} == {session.token}


def test_4_1_2_the_handshake_creates_an_entry_for_the_client(world: World) -> None:
    """Tokens are acquired by a handshake, in which the Registrar creates the client's entry: durably, before it grants."""
    world.flowing = False
    application = world.add()
    world.deliver(world.in_flight.pop(0))
    (grant,) = [message.grant for message in world.server_said if message.grant]
    claims = world.keyring.verify(grant.token)
    created = world.row_of(claims.client).created
    assert created is not None
    assert created.device == application.device


def test_4_1_2_a_token_of_another_data_center_repeats_the_handshake(world: World) -> None:
    """A session identifier names the data center that issued it; elsewhere the client is told to repeat the handshake."""
    application = world.add()
    world.run(1)
    session = session_at(world, application)
    foreign = world.keyring.sign(Claims(session.client, "demo", application.device, session.number + 5, "elsewhere", 1))
    world.model.receive(world.links[application], ClientMessage(token=foreign))
    assert world.server_said[-1].start_anew is not None
    assert world.server_said[-1].start_anew.code == "token-elsewhere"
    assert world.server_said[-1].start_anew.keep


def test_4_1_2_the_client_identifier_lives_as_long_as_the_clients_state(world: World) -> None:
    """A new token reuses the client identifier when possible: over restarts, and not when the state behind it is gone."""
    application = world.add()
    world.run(1)
    first = session_at(world, application)
    world.restart(application, keep_state=True)
    world.run(2)
    second = session_at(world, application)
    world.lose_registrar_table()
    world.run(5)
    third = session_at(world, application)
    assert first.client == second.client != third.client


def test_4_1_2_a_client_holds_one_session_at_a_time(world: World) -> None:
    """A client goes through many session identifiers, but only one is good at any time: the earlier one is superseded."""
    application = world.add()
    world.run(1)
    first = session_at(world, application)
    world.restart(application, keep_state=True)
    world.run(1)
    second = session_at(world, application)
    world.flowing = False
    world.model.receive(world.links[application], ClientMessage(token=first.token))
    assert world.server_said[-1].start_anew is not None
    assert world.server_said[-1].start_anew.code == "session-superseded"
    assert world.model.sessions[second.client] is second


def test_4_1_2_sessions_order_sequence_numbers(world: World, registered: Application) -> None:
    """Each start of a client gets a new session identifier. Here it leads the seqno, so a later start outranks all before it."""
    session = session_at(world, registered)
    first = copies_of(world.table, X)[session.client]
    world.restart(registered, keep_state=True)
    registered.unregister(b"x")
    world.run(1)
    registered.register(b"x")
    world.run(1)
    second = copies_of(world.table, X)[session.client]
    assert session_of(first) < session_of(second)


def test_4_1_2_clients_send_heartbeats(world: World) -> None:
    """Clients tell the Registrar periodically that they are online. Smeared, here, so that they do not speak together."""
    world.add()
    world.run(10)
    before = len(world.clients_said)
    world.run(10 * SETTINGS.heartbeat_s)
    said = world.clients_said[before:]
    assert 7 <= len(said) <= 13
    assert all(message == ClientMessage(token=message.token, summary=message.summary) for message in said)


def test_4_1_2_heartbeats_come_every_20_minutes_and_80_minutes_of_silence_mean_offline() -> None:
    """The interval is 20 minutes; after 80 minutes without any message a client counts as offline. Here these are defaults."""
    defaults = ApplicationSettings()
    assert defaults.heartbeat_s == 20 * 60
    assert defaults.offline_s == 80 * 60


def test_4_1_2_a_silent_client_counts_as_offline_and_is_sent_nothing(world: World, registered: Application) -> None:
    """The Registrar sends only to clients that are online; one that was silent for too long is not."""
    world.reconnecting = False
    world.disconnect(registered, noticed=False)
    world.run(SETTINGS.offline_s + 1)
    before = len(world.server_said)
    world.publish(b"x", 1)
    world.run(100)
    assert world.server_said[before:] == []
    assert world.model.sessions == {}


def test_4_1_2_a_channel_that_reports_the_disconnect_makes_the_client_offline_at_once(world: World) -> None:
    """Some channels tell when a client disconnects; the Registrar then need not wait for its silence."""
    application = world.add()
    world.run(1)
    assert len(world.model.sessions) == 1
    world.disconnect(application, noticed=True)
    assert world.model.sessions == {}


def test_4_1_2_a_heartbeat_of_a_client_that_is_online_needs_only_memory(world: World) -> None:
    """Heartbeats are light: small messages, and one operation in memory when the client is online already.

    Here the row is read again once per heartbeat interval, to find drift; nothing is ever written.
    """
    application = world.add()
    application.register(b"x")
    world.run(5)
    session = session_at(world, application)
    world.table.trace.clear()
    for _ in range(3):
        world.model.receive(world.links[application], ClientMessage(token=session.token, summary=session.summary))
    assert world.table.trace == []
    world.run(10 * SETTINGS.heartbeat_s)
    assert {kind for kind, _ in world.table.trace} <= {"read"}
    assert len(world.table.trace) <= 21
