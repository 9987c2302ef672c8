"""Runs worlds with one bug in them: the mutant's text is put into its modules before anything else imports them.

    PYTHONHASHSEED=0 python -m tests.simulation.mutants.run NAME SEEDS     # seeds 5, or 1-2000: stops at the first that fails
    PYTHONHASHSEED=0 python -m tests.simulation.mutants.run "" 5           # the code as it is

Prints one line of JSON: the seed, the checker, what broke and after how many steps; or null. One mutant per process: what is imported
stays. So this module imports nothing of the service before the mutant is in place.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from tests.simulation.mutants.gallery import GALLERY
from tests.simulation.mutants.mutant import INTERVALS, SWEEPS, Mutant

ROOT = Path(__file__).parents[3]


class DoesNotFit(Exception):
    """The code has changed: the text that a mutant replaces is not there, or more than once."""


class _MutatedLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, edits: Iterable[tuple[str, str]]) -> None:
        super().__init__(name, path)
        self._edits = tuple(edits)

    def get_code(self, fullname: str) -> CodeType:
        source = mutated(Path(self.path).read_text(), self._edits)
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Asked before all others, for the modules of one mutant."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        edits = [(edit.old, edit.new) for edit in self._mutant.edits if f"roskva.{edit.module}" == fullname]
        if not edits:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None:
            return None
        return importlib.util.spec_from_file_location(fullname, spec.origin, loader=_MutatedLoader(fullname, spec.origin, edits))


def mutated(source: str, edits: Iterable[tuple[str, str]]) -> str:
    for old, new in edits:
        if source.count(old) != 1:
            raise DoesNotFit(f"found {source.count(old)} times, not once:\n{old}")
        source = source.replace(old, new)
    return source


def install(mutant: Mutant) -> None:
    imported = [edit.module for edit in mutant.edits if f"roskva.{edit.module}" in sys.modules]
    if imported:
        raise DoesNotFit(f"{imported[0]} is imported already")
    sys.meta_path.insert(0, _Finder(mutant))


def first_failure(seeds: Iterable[int], needs: Iterable[str] = (), breaks: str = "") -> dict[str, Any] | None:
    """In this process, with whatever is installed: the first failure, of worlds with these faults and by this checker if one is named."""
    from roskva.simulation.knobs import draw
    from roskva.simulation.world import simulate

    for seed in seeds:
        knobs = draw(seed)
        happens = knobs.faults | ({SWEEPS} if knobs.sweep_pause_s else set())
        happens |= {INTERVALS} if knobs.notify_interval_ms or knobs.own_interval_ms else set()
        if not happens.issuperset(needs):
            continue
        outcome = simulate(knobs, trace=False)
        if outcome.failure is not None and breaks in ("", outcome.checker):
            return {"seed": seed, "checker": outcome.checker, "steps": outcome.steps, "failure": outcome.failure}
    return None


def in_a_fresh_process(name: str, seeds: str, timeout_s: float) -> dict[str, Any] | None:
    """What `main` prints, for the mutant of this name; "" is the code as it is."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.mutants.run", name, seeds],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {done.stderr[-2_000:]}")
    found: dict[str, Any] | None = json.loads(done.stdout.splitlines()[-1])
    return found


def main(name: str, seeds: str) -> None:
    if os.environ.get("PYTHONHASHSEED") != "0":
        raise SystemExit("worlds are the same worlds only with PYTHONHASHSEED=0")
    needs: tuple[str, ...] = ()
    breaks = ""
    if name:
        mutant = GALLERY[name]
        needs, breaks = mutant.needs, mutant.breaks
        install(mutant)
    numbers: list[int] = []
    for part in seeds.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    print(json.dumps(first_failure(numbers, needs, breaks)))


if __name__ == "__main__":
    main(*sys.argv[1:])
