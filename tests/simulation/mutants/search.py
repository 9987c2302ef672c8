"""Looks for the first seed of those in CI that catches each mutant, and records it.

    python -m tests.simulation.mutants.search [NAME...] [--seeds 1-2000] [--seconds 3600]

Without names: all of them. What was recorded for a mutant that is not asked for stays; what is recorded for one that is no longer in the
gallery goes. To be run whenever the simulator changes, since seeds then stand for other worlds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.simulation.mutants.gallery import GALLERY
from tests.simulation.mutants.run import in_a_fresh_process

RECORDED = Path(__file__).with_name("recorded.json")


def recorded() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    return found


def record(catches: dict[str, dict[str, Any]]) -> None:
    kept = {name: catches[name] for name in GALLERY if name in catches}
    RECORDED.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants.search")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--seeds", default="1-2000")
    parser.add_argument("--seconds", type=float, default=3_600.0, help="for each mutant; what takes longer is left as it was recorded")
    options = parser.parse_args(arguments)
    survivors = []
    for name in options.names or GALLERY:
        began_s = time.monotonic()
        try:
            caught = in_a_fresh_process(name, options.seeds, options.seconds)
        except subprocess.TimeoutExpired:
            print(f"{name}: not found within {options.seconds:g} s", flush=True)
            survivors.append(name)
            continue
        catches = recorded()
        if caught is None:
            survivors.append(name)
            catches.pop(name, None)
            print(f"{name}: SURVIVES {options.seeds} ({time.monotonic() - began_s:.0f} s)", flush=True)
        else:
            catches[name] = caught
            print(f"{name}: seed {caught['seed']}, {caught['checker']}, {caught['steps']:,} steps: {caught['failure'][:140]}", flush=True)
        record(catches)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
