"""Every bug of the gallery is caught, by the seed and the checker that were recorded; the same seeds hold without it; no checker is idle.

After a change of the simulator the seeds stand for other worlds: `python -m tests.simulation.mutants.search` finds new ones.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from roskva.simulation.checkers import Checker
from tests.simulation.mutants.gallery import GALLERY
from tests.simulation.mutants.run import ROOT, DoesNotFit, in_a_fresh_process, mutated
from tests.simulation.mutants.search import recorded
from tests.simulation.mutants.table import DOCUMENT, document

_AT_ONCE = 2
_WORLD_S = 120.0
RECORDED = recorded()


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any] | None]:
    """What became of the recorded seed of each mutant; and of all these seeds without any, under "". Each in a process of its own."""
    wanted = {name: str(caught["seed"]) for name, caught in RECORDED.items() if name in GALLERY}
    wanted[""] = ",".join(sorted(set(wanted.values()), key=int))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        # The longest first: the code as it is, with all seeds.
        running = {name: pool.submit(in_a_fresh_process, name, wanted[name], 2 * _WORLD_S) for name in sorted(wanted)}
        return {name: future.result() for name, future in running.items()}


@pytest.mark.timeout(600)
def test_without_a_mutant_all_these_worlds_hold(outcomes: dict[str, dict[str, Any] | None]) -> None:
    assert outcomes[""] is None


@pytest.mark.parametrize("name", GALLERY)
def test_the_mutant_is_caught(name: str, outcomes: dict[str, dict[str, Any] | None]) -> None:
    assert name in RECORDED, "no seed is recorded: run python -m tests.simulation.mutants.search"
    caught = outcomes[name]
    assert caught is not None, f"seed {RECORDED[name]['seed']} no longer catches it"
    assert caught["checker"] == RECORDED[name]["checker"], caught["failure"]


def test_every_checker_is_broken_by_a_mutant() -> None:
    """One that catches no bug proves nothing when it is silent."""
    checkers = {checker.__name__ for checker in Checker.__subclasses__()}
    assert len(checkers) >= 10
    assert checkers - {caught["checker"] for caught in RECORDED.values()} == set()


def test_the_gallery_is_as_large_as_promised() -> None:
    assert len(GALLERY) >= 25
    assert RECORDED.keys() == GALLERY.keys()
    assert all(1 <= caught["seed"] <= 5_000 for caught in RECORDED.values())


def test_the_table_of_mutants_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == document(), "run: python -m tests.simulation.mutants.table > docs/mutants.md"


@pytest.mark.parametrize("name", GALLERY)
def test_the_mutant_fits_the_code(name: str) -> None:
    for edit in GALLERY[name].edits:
        path = ROOT / "src" / "roskva" / Path(*edit.module.split(".")).with_suffix(".py")
        assert mutated(path.read_text(), [(edit.old, edit.new)]) != path.read_text()


def test_text_that_is_not_there_once_is_refused() -> None:
    for source in ("b", "a a"):
        with pytest.raises(DoesNotFit):
            mutated(source, [("a", "c")])
