"""The stage for the claims of the paper: the real cores, joined in memory (tests/properties/world.py)."""

from __future__ import annotations

import pytest

from tests.properties.application import Application
from tests.properties.world import World


@pytest.fixture
def world() -> World:
    return World(seed=1)


@pytest.fixture
def registered(world: World) -> Application:
    """A client that registered for x, and for which nothing is left to do."""
    application = world.add()
    application.register(b"x")
    world.run(1)
    return application


@pytest.fixture
def registering(world: World) -> Application:
    """A client whose registration for x is in its row, and which the pipeline, standing still, has not heard of."""
    application = world.add()
    world.run(1)
    world.pipeline_runs = False
    application.register(b"x")
    world.pump()
    return application
