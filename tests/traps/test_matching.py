"""What the Matcher's task makes of records that come late, or that no task can be done with (traps 20 and 32)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from roskva.config import Settings
from roskva.feed import open_feed
from roskva.feed.interface import UPDATES
from roskva.matcher.forms import Stamp
from roskva.model import OUTCOME_UNKNOWN, OUTCOME_UPDATE, partition_of
from roskva.pipeline.connections import Connections
from roskva.table import open_manifest
from tests.pipeline.standin import RegistrarStandIn, settings_for
from tests.pipeline.test_matching import Rows, key_of, letters, run, told


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path)


@pytest.fixture
def registrar(settings: Settings) -> Iterator[RegistrarStandIn]:
    standin = RegistrarStandIn(settings)
    yield standin
    standin.die()


@pytest.fixture
def connected(settings: Settings) -> Iterator[Connections]:
    opened = Connections(settings)
    yield opened
    opened.links.close()


@pytest.mark.parametrize("lost", [("feed", UPDATES), ("table", "matcher")])
def test_trap_32_a_late_retry_after_a_loss_makes_nothing_known(
    connected: Connections, registrar: RegistrarStandIn, settings: Settings, lost: tuple[str, str]
) -> None:
    """v9 was acknowledged and lost; then the publisher of v8, which had heard nothing, tries again. Who holds 8 is not "covered"."""
    kind, name = lost
    rows = Rows(settings)
    run(connected, rows.update("x", 7))
    partition = partition_of(key_of("x"), settings.partitions)
    manifest = open_manifest(settings)
    assert manifest.record_lost(kind, name, partition, manifest.record(kind, name, partition).incarnation)
    open_feed(settings).incarnation(UPDATES, partition)  # it begins anew
    connected.table.incarnation("matcher", partition)
    run(connected, rows.update("x", 8))
    run(connected, rows.registration("a", "x", 1, held=8), rows.registration("b", "x", 1))
    assert told(registrar) == [("a", 1, OUTCOME_UNKNOWN, 0), ("b", 1, OUTCOME_UNKNOWN, 0)]
    registrar.told.clear()
    assert manifest.mark_complete(kind, name, partition, manifest.record(kind, name, partition).incarnation)
    run(connected, rows.registration("c", "x", 1, held=8))
    assert told(registrar) == [("c", 1, OUTCOME_UNKNOWN, 0)], "recovered, it is as unknown as before: 8 came after 9, which was lost"


def test_trap_20_a_poison_record_is_buried_and_those_beside_it_are_told(
    connected: Connections, registrar: RegistrarStandIn, settings: Settings
) -> None:
    """Raised, it would end the query, which would start again with the same record, for ever."""
    rows = Rows(settings)
    run(connected, rows.registration("a", "x", 1))
    registrar.told.clear()
    poison = rows.row(UPDATES, key_of("x"), Stamp("demo", 0).encode(), b"\xff\x00 no JSON")
    for _ in range(2):
        assert run(connected, poison, rows.update("x", 4)).dead_letters == 1
    assert set(told(registrar)) == {("a", 1, OUTCOME_UPDATE, 4)}
    assert len(letters(settings)) == 1, "a repeated batch adds nothing"
