"""What the search found, kept as plain examples, each with its cause."""

from __future__ import annotations

import pytest

from tests.properties.store import Fault
from tests.properties.world import World


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.LANDED])
def test_a_mark_that_fails_while_members_settle_keeps_the_update(fault: Fault) -> None:
    """Cause: while members settle, storing for an offline client first writes a mark; its failure ended the whole call by an exception.

    Whoever answers the pipeline must then answer "unavailable", so that the batch stays open and asks again.
    """
    world = World(seed=1, service=True)
    application = world.add()
    application.register(b"x")
    world.run(5)
    world.reconnecting = False
    world.restart_registrar(links_break=True)  # it settles for a second
    world.registrar_steps.faults.append(fault)
    world.publish(b"x", 1)
    world.pump()
    assert not world.registrar_steps.faults, "nothing was marked"
    world.heal()
    world.close()
    assert application.store[b"x"] == 1


def test_a_registration_in_the_row_that_never_reached_the_feed_is_repeated() -> None:
    """Not a bug: what the search finds first when pending registrations are not repeated after a crash. Kept as the example."""
    for service in (False, True):
        world = World(seed=1, service=service)
        application = world.add()
        world.run(5)
        world.registrar_steps.faults.extend([Fault.NONE, Fault.DIED_AFTER])  # marked, written, and dead before it appends
        application.register(b"x")
        world.run(30)
        assert world.broken_promises() == []
        world.close()
