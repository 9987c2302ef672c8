"""One Registrar on engines of its own for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from roskva.config import ApplicationSettings, Settings
from tests.registrar.place import Place


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    demo = ApplicationSettings(resend_min_s=0.3, resend_max_s=1.0)
    return Settings(data=tmp_path, settling_s=0.0, mark_poll_s=0.2, applications={"demo": demo})


@pytest.fixture
async def place(settings: Settings) -> AsyncIterator[Place]:
    place = Place(settings)
    await place.registrar.start()
    yield place
    await place.close()
