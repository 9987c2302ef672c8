"""`make fuzz`, or `python -m fuzzing --minutes 10 --seed 7 tokens names`: all targets in turns, with their pace; status 1 if one failed."""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import time
from typing import Final

from fuzzing.running import FAILED, Run, keep
from fuzzing.targets import targets

_TURN_S: Final = 1.0
_TOLD_EVERY_S: Final = 20.0


def main() -> int:
    known = {target.name: target for target in targets()}
    parser = argparse.ArgumentParser(prog="python -m fuzzing", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all of them together (10)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32), help="of all chance; printed")
    parser.add_argument("names", nargs="*", metavar="TARGET", help=f"of {', '.join(known)}; all if none is named")
    options = parser.parse_args()
    unknown = set(options.names) - known.keys()
    if unknown:
        parser.error(f"there is no target {min(unknown)}")
    logging.disable(logging.WARNING)  # refusals are what is asked for here; errors are findings
    print(f"seed {options.seed}; {options.minutes:g} minutes", flush=True)
    runs = [Run(known[name], options.seed) for name in options.names or known]
    began_s = told_s = time.monotonic()
    failed: set[str] = set()
    while time.monotonic() - began_s < options.minutes * 60 and len(failed) < len(runs):
        for run in runs:
            if run.target.name in failed:
                continue
            finding = run.go(_TURN_S)
            if finding is not None:
                failed.add(run.target.name)
                keep(finding)
                print(f"\n{finding}\nIt is kept in {FAILED.name}, and is tried first from now on.\n", flush=True)
        if time.monotonic() - told_s > _TOLD_EVERY_S:
            told_s = time.monotonic()
            _tell(runs, told_s - began_s)
    _tell(runs, time.monotonic() - began_s)
    print(f"failed: {', '.join(sorted(failed))}" if failed else "nothing failed")
    return 1 if failed else 0


def _tell(runs: list[Run], elapsed_s: float) -> None:
    print(f"after {elapsed_s:.0f} s:")
    for run in runs:
        pace = run.inputs / run.spent_s if run.spent_s else 0.0
        print(f"  {run.target.name:16} {run.inputs:>10,} inputs {pace:>8,.0f}/s {len(run.answers):>5} kinds of answers", flush=True)


if __name__ == "__main__":
    sys.exit(main())
