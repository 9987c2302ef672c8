"""The bug gallery: every mutant by its name. The simulator must catch each, in one of its first 5,000 worlds (recorded.json says which)."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.mutant import Mutant
from tests.simulation.mutants.of_intervals import OF_INTERVALS
from tests.simulation.mutants.of_the_client import OF_THE_CLIENT
from tests.simulation.mutants.of_the_matcher import OF_THE_MATCHER
from tests.simulation.mutants.of_the_registrar import OF_THE_REGISTRAR
from tests.simulation.mutants.of_the_sweeps import OF_THE_SWEEPS

GALLERY: Final[dict[str, Mutant]] = {
    mutant.name: mutant for mutant in (*OF_THE_MATCHER, *OF_THE_REGISTRAR, *OF_INTERVALS, *OF_THE_SWEEPS, *OF_THE_CLIENT)
}
