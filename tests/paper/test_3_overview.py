"""Thialfi 3: the model, the client API and how it is used."""

from __future__ import annotations

from dataclasses import fields

import pytest

from roskva.client.actions import Notification
from roskva.client.core import ClientCore
from roskva.errors import InvalidName, InvalidVersion
from roskva.matcher.forms import Form, check, extract
from roskva.model import VERSION_MAX, Update, name_from_text, name_to_text, object_key, version_from_number
from roskva.protocol.messages import FAILED, ClientMessage, ServerMessage, Status
from roskva.protocol.messages import Notify as NotifyMessage
from tests.paper.stage import notified, session_at, take_offline
from tests.properties.application import Application
from tests.properties.world import World


def test_3_1_an_object_is_named_by_bytes_in_its_applications_own_namespace() -> None:
    """Objects are named by byte strings of the application's choosing, in a namespace that is the application's alone."""
    assert object_key("one", 0, b"x") != object_key("two", 0, b"x")
    for name in (b"x", bytes(range(32)), b"\xff" * 128, "ört".encode()):
        assert name_from_text(name_to_text(name)) == name
    with pytest.raises(InvalidName):
        name_from_text("x" * 129)


def test_3_1_versions_are_64_bit_numbers_that_the_application_chooses() -> None:
    """A version is a 64-bit number, chosen by the application and part of the update that it publishes.

    Here it is from 0 to 2^63-1, so that it can be a timestamp of the table.
    """
    update = check("demo", 0, extract(b'{"object": "x", "version": %d}' % VERSION_MAX, Form()))  # type: ignore[arg-type]
    assert isinstance(update, Update)
    assert update.version == VERSION_MAX == 2**63 - 1
    with pytest.raises(InvalidVersion):
        version_from_number(2**63)


def test_3_1_the_latest_version_is_the_highest_whatever_comes_later(world: World) -> None:
    """Versions of an object grow, so the latest is well defined: a lower one that arrives later changes nothing."""
    application = world.add()
    application.register(b"x")
    world.publish(b"x", 7)
    world.run(1)
    world.publish(b"x", 5)
    world.run(1)
    assert application.store[b"x"] == 7
    assert [one.version for one in application.history if not one.unknown] == [7]


def test_3_1_a_notification_tells_the_object_and_the_latest_version_known(world: World) -> None:
    """The application is told which object changed, and the latest version of it that is known."""
    application = world.add()
    world.publish(b"x", 3)
    world.publish(b"x", 4)
    application.register(b"x")
    world.run(1)
    assert [(one.name, one.version) for one in application.history] == [(b"x", 4)]


def test_3_1_a_notification_carries_no_data() -> None:
    """The service signals, and the application fetches from its own servers: no object's data passes through."""
    assert set(NotifyMessage.__struct_fields__) == {"object", "seqno", "version", "epoch"}
    assert {one.name for one in fields(Notification)} == {"name", "version", "epoch", "seqno", "session"}


def test_3_1_the_source_of_a_change_is_not_told_of_it(world: World) -> None:
    """A publish may name the client that made the change (its application id, here the device); that one is left out."""
    author, reader = world.add(), world.add()
    for application in (author, reader):
        application.register(b"x")
    world.run(1)
    world.publish(b"x", 8, source=author)
    world.run(1)
    assert [one.version for one in reader.history if not one.unknown] == [8]
    assert not [one for one in author.history if not one.unknown]


def test_3_1_messages_may_be_dropped_reordered_or_duplicated(world: World) -> None:
    """A channel must not corrupt messages; other than that it may drop, reorder and duplicate them."""
    application = world.add()
    world.flowing = False
    application.register(b"x")
    world.publish(b"x", 1)
    for _ in range(20):
        world.run(1.5)
        packets, world.in_flight = world.in_flight[::-1], []
        for number, packet in enumerate(packets):
            for _ in range(number % 3):  # the first is lost, the next arrives once, the third twice, and all in reverse
                world.deliver(packet)
    world.heal()
    assert application.store[b"x"] == 1


def test_3_3_the_client_library_starts_registers_and_unregisters_but_never_publishes() -> None:
    """A client can start, register and unregister. Publishing is for backends: neither the library nor the protocol has it."""
    assert all(callable(getattr(ClientCore, name)) for name in ("start", "register", "unregister"))
    assert not hasattr(ClientCore, "publish")
    assert "publish" not in ClientMessage.__struct_fields__


def test_3_3_unknown_is_told_if_no_update_was_ever_received(world: World) -> None:
    """When no version of the object is known, the application is told to fetch it whatever it holds."""
    application = world.add()
    application.register(b"never published")
    world.run(1)
    assert [one.unknown for one in application.history] == [True]


def test_3_3_unknown_is_told_regardless_of_the_version_that_the_client_holds(world: World) -> None:
    """Unknown means: fetch, regardless of the cached version. So a version stated at registration does not silence it."""
    application = world.add(states_versions=True)
    application.store[b"x"] = 9
    application.register(b"x")
    world.run(1)
    assert [one.unknown for one in application.history] == [True]


def test_3_3_unknown_has_a_sequence_number_and_is_delivered_until_acknowledged(world: World) -> None:
    """The server numbers unknown notifications, so that they can be delivered and acknowledged as reliably as any other."""
    application = world.add(prompt=False)
    world.run(1)
    application.register(b"x")
    world.run(5)
    told = notified(world)
    assert len(told) > 1, "it was not repeated"
    assert {one.version for one in told} == {None}
    assert len({one.seqno for one in told}) == 1
    assert int(told[0].seqno) > 0
    application.deal_with()
    world.run(1)
    count = len(world.server_said)
    world.run(9)
    assert not notified(world, count)


def test_3_3_the_application_is_informed_of_registration_changes(world: World, registered: Application) -> None:
    """RegistrationStatusChanged tells what the server says about a registration."""
    registered.unregister(b"x")
    world.run(1)
    assert registered.statuses == [(b"x", True), (b"x", False)]


@pytest.mark.parametrize("transient", [True, False])
def test_3_3_a_registration_failure_says_whether_to_try_again(world: World, transient: bool) -> None:
    """RegistrationFailure says whether the failure is transient.

    Here the library itself tries again after a transient one; after a permanent one the object is no longer wished for.
    """
    application = world.add()
    world.run(1)
    world.flowing = False
    application.register(b"x")
    world.in_flight.clear()
    session = session_at(world, application)
    status = Status(object="x", state=FAILED, transient=transient, code="some-code")
    application.carry_out(application.core.received(world.now, ServerMessage(token=session.token, status=[status])))
    assert [(one.name, one.transient) for one in application.failures] == [(b"x", transient)]
    assert (b"x" in application.core.desired) is transient
    world.flowing = True
    world.run(20)
    assert (application.confirmed.get(b"x") is True) is transient


def test_3_3_registrations_are_asked_for_at_start_and_after_loss_of_server_state(world: World) -> None:
    """ReissueRegistrations asks the application for all of its registrations, for example when the server lost its state."""
    application = world.add()
    assert application.reissues == 1
    application.register(b"x")
    world.run(1)
    world.table.rows.clear()
    world.restart_registrar(links_break=True)
    world.heal()
    assert application.reissues == 2
    assert application.confirmed[b"x"]


def test_3_3_the_identifier_goes_to_write_state_and_comes_back_at_start(world: World) -> None:
    """When the client gets its identifier the application stores it, opaque, and gives it back at the next start."""
    application = world.add()
    world.run(1)
    before = session_at(world, application)
    assert application.state is not None
    world.restart(application, keep_state=True)
    world.run(2)
    after = session_at(world, application)
    assert after.client == before.client
    assert after.number > before.number


def test_3_3_a_client_with_state_resumes_its_registrations_and_its_notifications(world: World, registered: Application) -> None:
    """With its identifier a client goes on with the registrations that it had, and is told what it missed."""
    take_offline(world, registered)
    world.publish(b"x", 5)
    world.run(1)
    events = len(world.feed.topics["registrations"])
    world.restart(registered, keep_state=True)
    world.run(2)
    assert registered.store[b"x"] == 5
    assert len(world.feed.topics["registrations"]) == events, "a registration was sent again"


def test_3_3_a_client_without_persistence_is_new_after_each_restart(world: World) -> None:
    """Clients that keep nothing are new clients after each restart."""
    application = world.add()
    world.run(1)
    before = session_at(world, application)
    world.restart(application, keep_state=False)
    world.run(1)
    after = session_at(world, application)
    assert after.client != before.client
