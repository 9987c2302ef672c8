"""Thialfi 4.1.5 and 4.1.6: servers that lose their state, networks that lose, repeat and reorder."""

from __future__ import annotations

from tests.paper.stage import session_at, take_offline
from tests.properties.application import Application
from tests.properties.world import Packet, World


def lose_everything(world: World) -> None:
    """All tables are gone, and the servers begin anew under another identity. The feed was consumed."""
    world.table.rows.clear()
    world.lose_registrar_table()


def test_4_1_5_tokens_of_before_are_detected_and_updated(world: World) -> None:
    """After a restart with an empty memory the servers go by a new identifier: old tokens are detected, and clients get new ones.

    Here that identifier is the incarnation of the Registrar's partition.
    """
    application = world.add()
    world.run(1)
    before = session_at(world, application)
    lose_everything(world)
    world.run(2)
    after = session_at(world, application)
    assert any(message.start_anew and message.start_anew.code == "token-elsewhere" for message in world.server_said)
    assert world.keyring.verify(after.token).incarnation > world.keyring.verify(before.token).incarnation


def test_4_1_5_clients_reissue_their_registrations_which_is_enough_to_rebuild_the_registrar(world: World) -> None:
    """The sync makes clients reissue their registrations, and these are all that the Registrar needs."""
    applications = [world.add() for _ in range(3)]
    for number, application in enumerate(applications):
        application.register(b"x")
        application.register(b"only-%d" % number)
    world.run(1)
    lose_everything(world)
    world.heal()
    for application in applications:
        session = session_at(world, application)
        assert world.row_of(session.client).digest.matches(application.core.desired.summary())


def test_4_1_5_lost_versions_are_told_as_unknown(world: World) -> None:
    """The latest versions are not recovered: for each registration the client is told unknown, and fetches from the backend."""
    application = world.add()
    application.register(b"x")
    world.publish(b"x", 7)
    world.run(1)
    lose_everything(world)
    world.run(5)
    assert [one.version for one in application.history] == [7, None]


def test_4_1_5_notifications_pending_at_the_loss_do_not_go_missing(world: World, registered: Application) -> None:
    """Pending notifications are lost with the servers' state, and yet correctness is not compromised: unknown covers them."""
    take_offline(world, registered)
    world.publish(b"x", 7)
    world.run(1)
    lose_everything(world)
    world.heal()
    assert registered.missing(b"x") == []
    assert registered.history[-1].unknown


def test_4_1_5_after_the_restart_updates_are_processed_as_usual(world: World, registered: Application) -> None:
    """Once registrations are rebuilt, updates flow as before."""
    lose_everything(world)
    world.run(5)
    world.publish(b"x", 8)
    world.run(1)
    assert registered.history[-1].version == 8


def test_4_1_6_a_lost_token_request_is_retried(world: World) -> None:
    """A token request that got lost is retried by the client, with another nonce, until it is answered."""
    world.flowing = False
    application = world.add()
    world.in_flight.clear()
    world.run(3)
    assert len([message for message in world.clients_said if message.init]) > 1
    world.flowing = True
    world.run(10)
    assert world.session_of(application) is not None


def test_4_1_6_duplicate_and_reordered_token_grants_are_ignored_by_their_nonce(world: World) -> None:
    """A nonce lets clients detect and ignore duplicate or reordered grants: only the answer to the last request counts."""
    world.flowing = False
    application = world.add()
    world.run(5)
    requests = [packet for packet in world.in_flight if packet.to_server]
    assert len(requests) > 1
    world.in_flight.clear()
    for packet in requests:
        world.deliver(packet)
    answers = list(world.in_flight)
    world.in_flight.clear()
    for packet in [answers[0], answers[-1], answers[0], answers[-1]]:
        world.deliver(packet)
    last = [message.grant for message in world.server_said if message.grant][-1]
    assert application.core._handshake.token == last.token
    assert len([message for message in world.clients_said if message.token]) == 1, "a grant was taken twice"


def test_4_1_6_lost_registrations_are_retried(world: World) -> None:
    """Registration changes are retried by the client until they are answered."""
    application = world.add()
    world.run(1)
    world.flowing = False
    application.register(b"x")
    world.run(5)
    assert sum(len(message.register) for message in world.clients_said) > 1
    world.in_flight.clear()
    world.flowing = True
    world.run(10)
    assert application.confirmed[b"x"]


def test_4_1_6_reordered_registration_changes_do_not_undo_later_ones(world: World) -> None:
    """Whatever order changes arrive in, the two sides converge on what the client wishes for."""
    application = world.add()
    world.run(1)
    world.flowing = False
    application.register(b"x")
    application.unregister(b"x")
    packets, world.in_flight = world.in_flight[::-1], []
    for packet in packets:
        world.deliver(packet)
    session = session_at(world, application)
    assert list(world.row_of(session.client).registered()) == []
    world.heal()


def test_4_1_6_a_lost_notification_is_delivered_again(world: World, registered: Application) -> None:
    """Notifications are acknowledged, and hence delivered reliably."""
    world.flowing = False
    world.publish(b"x", 1)
    world.run(0.5)
    assert any(not packet.to_server for packet in world.in_flight)
    world.in_flight.clear()
    world.flowing = True
    world.run(10)
    assert registered.store[b"x"] == 1


def test_4_1_6_a_lost_acknowledgement_costs_a_duplicate_that_is_not_shown(world: World, registered: Application) -> None:
    """Duplicates are permitted by the semantics. Here the library acknowledges them again and shows each version once a run."""
    world.flowing = False
    world.publish(b"x", 1)
    world.pump()
    (notification,) = [packet for packet in world.in_flight if not packet.to_server]
    world.in_flight.clear()
    world.deliver(notification)
    acknowledgements = [packet for packet in world.in_flight if packet.to_server]
    assert acknowledgements
    world.in_flight.clear()
    world.flowing = True
    world.run(10)
    assert [one.version for one in registered.history if not one.unknown] == [1]
    assert registered.core.in_sync(world.now)


def test_4_1_6_reordered_notifications_never_show_an_older_version_after_a_newer_one(world: World, registered: Application) -> None:
    """Reordering is permitted by the semantics. Here a run of the library shows the versions of an object in order."""
    world.flowing = False
    for version in (1, 2, 3):
        world.publish(b"x", version)
        world.run(0.1)
    packets: list[Packet] = [packet for packet in world.in_flight if not packet.to_server]
    world.in_flight.clear()
    for packet in [packets[2], packets[0], packets[1], packets[2]]:
        world.deliver(packet)
    assert [one.version for one in registered.history if not one.unknown] == [3]


def test_4_1_6_registrations_of_client_and_server_converge(world: World) -> None:
    """The Registration Sync Protocol makes both sides converge, whatever was lost between them."""
    application = world.add()
    world.lossy = True
    for number in range(30):
        (application.unregister if number % 3 == 2 else application.register)(b"object-%d" % (number % 7))
        world.run(0.7)
    world.heal()
