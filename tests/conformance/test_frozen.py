"""Frozen transcripts do not change, and the server answers them as on the day on which they were frozen, for ever."""

from __future__ import annotations

import hashlib
import re
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from roskva.conformance.player import Player
from roskva.conformance.transcripts import Transcript, load, read_deed, select
from roskva.errors import BadRequest
from tests.conformance.freeze import FROZEN, SUMS
from tests.conformance.houses import JoinedHouse

# Of the file with the sums of each version. A line is added when a version is frozen, and never changed.
FROZEN_SUMS = {1: "639829667b7d1a6801334244205b55b383cd812848cc0c2c73f974089656d9c6"}

TRANSCRIPTS = [(version, transcript) for version in FROZEN_SUMS for transcript in load(version)]


@pytest.mark.parametrize("version", FROZEN_SUMS)
def test_no_frozen_file_was_changed_added_or_removed(version: int) -> None:
    folder = FROZEN / f"v{version}"
    sums = (folder / SUMS).read_bytes()
    assert hashlib.sha256(sums).hexdigest() == FROZEN_SUMS[version]
    known = {name: digest for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", sums.decode(), re.MULTILINE)}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.name != SUMS}
    assert found == known


def test_every_frozen_version_is_known() -> None:
    assert sorted(path.name for path in FROZEN.glob("v*")) == sorted(f"v{version}" for version in FROZEN_SUMS)


@pytest.mark.parametrize(("version", "transcript"), TRANSCRIPTS, ids=lambda one: one.name if isinstance(one, Transcript) else f"v{one}")
async def test_the_server_answers_as_when_it_was_frozen(version: int, transcript: Transcript) -> None:
    house = JoinedHouse()
    await Player(transcript, house, "run").play()
    assert not house.server.sessions, "the player left its client behind"
    assert not house.server.clients()


def test_an_installed_package_has_them(tmp_path: Path) -> None:
    wheel = next(WheelBuilder(str(FROZEN.parents[2])).build(directory=str(tmp_path), versions=["standard"]))
    with zipfile.ZipFile(wheel) as archive:
        names = {name.removeprefix("roskva/conformance/") for name in archive.namelist() if name.startswith("roskva/conformance/v")}
    assert names == {str(path.relative_to(FROZEN)) for path in FROZEN.glob("v*/*")}


def test_the_documentation_shows_all_of_them() -> None:
    shown = {path.stem for path in (Path(__file__).parents[2] / "docs" / "transcripts").glob("*.txt")}
    assert {transcript.name for _, transcript in TRANSCRIPTS} <= shown


def test_one_is_chosen_by_the_beginning_of_its_name() -> None:
    assert [one.name for one in select(load(), ["04", "07-off"])] == ["04-notification", "07-offline"]
    assert select(load(), []) == load()
    with pytest.raises(BadRequest, match="no transcript '99'"):
        select(load(), ["99"])
    with pytest.raises(BadRequest, match="cannot say"):
        read_deed("the moon is full")
