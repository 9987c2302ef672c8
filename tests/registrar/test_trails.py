"""Sampled updates at a Registrar: told, sent and acknowledged, by the fast path and by the pipeline (registrar/trails.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from roskva.config import Settings
from roskva.model import OUTCOME_UPDATE, SETTLED, ObjectKey, Stamps, Update
from roskva.protocol.internal import Hints, Propagate, decode_frame, encode_frame
from roskva.registrar import trails
from roskva.registrar.fast import Bounds
from roskva.registrar.trails import CLIENTS_MAX, Trails
from roskva.telemetry import latency as of
from tests.registrar.place import Place, acknowledging, serving, told
from tests.registrar.test_fast import following


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with serving(Place(Settings(data=tmp_path, settling_s=0.0))) as one:
        yield one


def counts(place: Place) -> dict[tuple[str, str], int]:
    return {name: histogram.count for name, histogram in place.registrar.trails.latency.histograms.items()}


def stamps_of(place: Place, key: ObjectKey, version: int) -> Stamps:
    now_us = place.registrar.trails.now_us()
    return Stamps(key, version, 0, now_us - 3_000, now_us - 1_000)


def picked(stamps: Stamps) -> Stamps:
    """As a task brings them: what the gateway alone knows is not with them."""
    at_us = stamps.durable_us
    return stamps._replace(durable_us=0, picked_us=at_us + 1, read_us=at_us + 2, bridged_us=at_us + 3, matched_us=at_us + 4)


async def test_the_fast_path_is_followed_to_the_acknowledgement(place: Place) -> None:
    channel, token, event = await following(place)
    acknowledging(place, channel, token)
    stamps = stamps_of(place, event.object, 7)
    place.registrar.trails.accepted([stamps])
    place.registrar.fast.updated([Update(event.object, 7, ""), Update(event.object, 6, "")], [stamps])
    assert counts(place)[of.FAST, of.TO_SENT] == 1
    await asyncio.sleep(0.05)
    assert counts(place)[of.FAST, of.TO_ACKNOWLEDGED] == 1
    assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, 7)], [picked(stamps)]) == [SETTLED]
    found = counts(place)
    assert found[of.PIPELINE, of.TO_TOLD] == found[of.PIPELINE, of.DURABLE_PICKED] == 1
    assert (of.PIPELINE, of.TO_SENT) not in found, "the client had acknowledged"


async def test_what_the_pipeline_sends_is_of_the_pipeline(place: Place) -> None:
    channel, token, event = await following(place)
    acknowledging(place, channel, token)
    stamps = picked(stamps_of(place, event.object, 7))
    assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, 7)], [stamps]) == [SETTLED]
    found = counts(place)
    assert found[of.PIPELINE, of.TO_SENT] == found[of.PIPELINE, of.TO_ACKNOWLEDGED] == found[of.PIPELINE, of.TOLD_SENT] == 1
    assert (of.PIPELINE, of.DURABLE_PICKED) not in found, "nobody said when it was durable"
    assert not [way for way, _ in found if way == of.FAST]


async def test_what_the_fast_path_sent_and_nobody_answered_is_not_sent_first_by_the_pipeline(place: Place) -> None:
    _, _, event = await following(place)
    stamps = stamps_of(place, event.object, 7)
    place.registrar.trails.noted([stamps])
    place.registrar.fast.updated([Update(event.object, 7, "")], [stamps])
    assert await place.registrar.propagate([told(event, OUTCOME_UPDATE, 7)], [picked(stamps)]) == [SETTLED]
    found = counts(place)
    assert found[of.FAST, of.TO_SENT] == 1
    assert (of.PIPELINE, of.TO_SENT) not in found
    assert (of.FAST, of.TO_ACKNOWLEDGED) not in found


async def test_an_acknowledgement_of_a_later_version_is_not_that_of_the_sampled_one(place: Place) -> None:
    channel, token, event = await following(place)
    place.registrar.fast.updated([Update(event.object, 7, "")], [stamps_of(place, event.object, 7)])
    acknowledging(place, channel, token)
    place.registrar.fast.updated([Update(event.object, 8, "")])
    await asyncio.sleep(0.05)
    assert place.registrar.counters.acknowledged == 2
    assert (of.FAST, of.TO_ACKNOWLEDGED) not in counts(place)


async def test_a_few_clients_of_an_update_are_followed(place: Place) -> None:
    everyone = [await following(place, device=f"d{number}") for number in range(CLIENTS_MAX + 2)]
    key = everyone[0][2].object
    place.registrar.fast.updated([Update(key, 7, "")], [stamps_of(place, key, 7)])
    assert counts(place)[of.FAST, of.TO_SENT] == CLIENTS_MAX
    later = [told(event, OUTCOME_UPDATE, 8) for _, _, event in everyone]
    await place.registrar.propagate(later, [picked(stamps_of(place, key, 8))])
    assert counts(place)[of.PIPELINE, of.TO_TOLD] == 1


async def test_of_a_crowd_that_is_told_in_turns_a_few_are_followed_up_to_the_last(place: Place) -> None:
    place.registrar.fast.bounds = Bounds(crowd=2, told_per_turn=2)
    everyone = [await following(place, device=f"d{number}") for number in range(2 * CLIENTS_MAX + 3)]
    key = everyone[0][2].object
    place.registrar.fast.updated([Update(key, 7, "")], [stamps_of(place, key, 7)])
    async with asyncio.timeout(10):
        while place.registrar.counters.sent_at_once < len(everyone):
            await asyncio.sleep(0.001)
    assert counts(place)[of.FAST, of.TO_SENT] == CLIENTS_MAX
    outstanding = [session.outstanding[key, False] for session in place.registrar.sessions.values()]
    assert sum(entry.trail is not None for entry in outstanding) == CLIENTS_MAX
    await asyncio.sleep(0.01)
    assert not place.registrar.fast._crowds


def test_what_the_pipeline_never_comes_with_takes_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trails, "_DURABLE_MAX", 3)
    kept = Trails(lambda: 1.0)
    key = ObjectKey(b"demo\x00\x00\x00\x00\x00x")
    kept.accepted([Stamps(key, version, 0, 1, 2) for version in range(10)])
    kept.told([Stamps(key, version, 0, 1, picked_us=3) for version in range(10)])
    assert kept.latency.histograms[of.PIPELINE, of.DURABLE_PICKED].count == 3


def test_frames_of_and_for_those_who_know_no_stamps_are_read() -> None:
    """A gateway and a pipeline of two versions meet while the service is renewed."""
    stamps = Stamps(ObjectKey(b"k"), 7, 1, 2, 3)
    whole = Propagate(5, [], [stamps])
    assert decode_frame(encode_frame(whole)[4:]) == whole
    assert decode_frame(b"\x93\x02\x05\x90") == Propagate(5, [])
    assert decode_frame(b"\x92\x0d\x90") == Hints([])
