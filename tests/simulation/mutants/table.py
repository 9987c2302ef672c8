"""docs/mutants.md: which bug is caught by which checker, in which world, after how many steps (run it to write the file)."""

from __future__ import annotations

from pathlib import Path

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


def document() -> str:
    catches = recorded()
    rows = []
    for name, mutant in GALLERY.items():
        rooms = ", ".join(f"`{module}`" for module in dict.fromkeys(edit.module for edit in mutant.edits))
        caught = catches[name]
        traps = ", ".join(map(str, mutant.traps))
        rows.append(f"| {name} | {rooms} | {traps} | `{caught['checker'] or 'the log'}` | {caught['seed']} | {caught['steps']:,} |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    print(document(), end="")
