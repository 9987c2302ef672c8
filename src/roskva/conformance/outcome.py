"""What became of a transcript, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final

PASSED: Final = "passed"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"


class Difference(Exception):
    """The first thing that the other side did and the transcript does not, or the other way round."""


class NotPlayed(Exception):
    """Why a transcript cannot be played here."""


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    result: str
    why: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)


def table(outcomes: Iterable[Outcome]) -> str:
    rows = list(outcomes)
    width = max((len(one.name) for one in rows), default=0)
    lines = []
    for one in rows:
        first, *more = one.why.splitlines() or [""]
        lines.append(f"{one.result:8}{one.name:{width}}  {first}".rstrip())
        lines += [" " * (width + 10) + line for line in more]
    counts = {result: sum(one.result == result for one in rows) for result in (PASSED, FAILED, SKIPPED)}
    return "\n".join([*lines, "", ", ".join(f"{count} {result}" for result, count in counts.items() if count or result != SKIPPED)])
