"""docs/mutants.md: which bug is caught by which checker, in which world, after how many steps (run it to write the file).

Those of capture have worlds of their own, and are in tests/simulation/capture/mutants.py with the seeds that catch them.
"""

from __future__ import annotations

from pathlib import Path

from tests.simulation.capture.mutants import MUTANTS
from tests.simulation.mutants.gallery import GALLERY
from tests.simulation.mutants.search import recorded

DOCUMENT = Path(__file__).parents[3] / "docs" / "mutants.md"

HEAD = """\
# The bug gallery

Bugs that somebody might have written, each put into the service's own code, and the first seed in whose world a checker
of the simulator catches it ([correctness.md](correctness.md)). A step is one turn of the world's event loop. The numbers of traps are
those of [traps.md](traps.md).

This file is written from what `python -m tests.simulation.mutants.search` recorded, by `python -m tests.simulation.mutants.table`; a test
keeps it up to date. To see one: `PYTHONHASHSEED=0 python -m tests.simulation.mutants.run NAME SEED`.

| bug | in | trap | caught by | seed | steps |
|---|---|---|---|---|---|
"""


HEAD_OF_CAPTURE = """\

## Capture

The same of [capture](capture.md), in its three worlds ([correctness.md](correctness.md#capture)): that of the publisher's core, that of
MariaDB's forks, and that of whole publishers and subscribers. The promise is the one that its checkers name when they catch the bug.
Written from `tests/simulation/capture/mutants.py`, which `tests/simulation/capture/test_worlds.py` runs. After a change of a world its
seeds stand for other worlds: `python -m tests.simulation.capture.mutants NAME` finds a new one.

| bug | in | world | broken promise | seed |
|---|---|---|---|---|
"""


def document() -> str:
    catches = recorded()
    rows = []
    for name, mutant in GALLERY.items():
        rooms = ", ".join(f"`{module}`" for module in dict.fromkeys(edit.module for edit in mutant.edits))
        caught = catches[name]
        traps = ", ".join(map(str, mutant.traps))
        rows.append(f"| {name} | {rooms} | {traps} | `{caught['checker'] or 'the log'}` | {caught['seed']} | {caught['steps']:,} |\n")
    of_capture = [
        f"| {mutant.name} | `capture.{mutant.module}` | `simulation.{mutant.world}` | {mutant.promise} | {mutant.seed} |\n"
        for mutant in MUTANTS
    ]
    return HEAD + "".join(rows) + HEAD_OF_CAPTURE + "".join(of_capture)


if __name__ == "__main__":
    print(document(), end="")
