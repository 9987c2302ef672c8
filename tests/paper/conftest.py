"""The stage for the claims of the paper: the real cores, joined in memory (tests/properties/world.py)."""

from __future__ import annotations

import pytest

from tests.properties.world import World


@pytest.fixture
def world() -> World:
    return World(seed=1)
