"""How soon the death of a publisher is noticed, with the defaults."""

from __future__ import annotations

from dataclasses import fields

import pytest

from roskva.capture.ownership import Liveness
from roskva.capture.publisher import PublisherSettings
from roskva.capture.publisher.owning import LEASE_SHARE


@pytest.mark.parametrize("look_s", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("died_s", [20.0, 20.3, 20.6, 20.99])
def test_a_death_is_noticed_early_enough_to_go_on_after_ten_seconds(look_s: float, died_s: float) -> None:
    """With the defaults: a beat a second, and a look a second, each with the time that it takes itself."""
    beat_s = next(float(field.default) for field in fields(PublisherSettings) if field.name == "beat_s")  # type: ignore[arg-type]
    seen = Liveness("p2")
    looks = (look_s + (beat_s + 0.02) * count for count in range(100))
    for now_s in looks:
        seen.observe({"p1": int(min(now_s, died_s) / beat_s), "p2": 1}, {"p1", "p2"}, now_s)
        if now_s > died_s and "p1" not in seen.live:
            break
    assert 6.5 < now_s - died_s < 9.5
    assert LEASE_SHARE * seen.takeover_s < 6.5, "one that was cut off has stopped by itself by then"
