"""The fixtures of the rooms whose traps are tested here."""

from __future__ import annotations

from tests.gateway.conftest import http, start
from tests.registrar.conftest import place, settings

__all__ = ["http", "place", "settings", "start"]
