"""Bugs of the intervals between notifications."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutants.mutant import INTERVALS, Mutant, mutant

OF_INTERVALS: Final[tuple[Mutant, ...]] = (
    mutant(
        "what an interval held back is dropped at its end",
        "registrar.pacing",
        "                found.append(interval)\n",
        "                self._drop(interval)\n",
        needs=(INTERVALS,),
    ),
    mutant(
        "what an interval holds back is answered as done and kept in memory only",
        "registrar.delivery",
        "            return _Owed(index, told, row, session, None, tell, version)  # written now",
        "            return _Owed(index, told, row, session, None, False, version)  # written now",
        needs=(INTERVALS,),
    ),
    mutant(
        "of what waits for the end of an interval the first is sent",
        "registrar.pacing",
        "        if interval.held is None or version > interval.held:\n",
        "        if interval.held is None:\n",
        needs=(INTERVALS,),
    ),
    mutant(
        "the fast path heeds no interval",
        "registrar.fast",
        "        if busy.intervals and unacknowledged.pacing.leaves_out",
        "        if False and unacknowledged.pacing.leaves_out",
        needs=(INTERVALS,),
        breaks="OncePerInterval",
    ),
    mutant(
        "a look at the row ends an interval",
        "registrar.unacknowledged",
        "        if version is not None and self.pacing.holds(",
        "        if False and version is not None and self.pacing.holds(",
        needs=(INTERVALS,),
        breaks="OncePerInterval",
    ),
)
