"""The table of docs/performance.md that `make bench` writes: every aim, what was measured last, when, and beside how much other work."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.accounting import OTHERS
from bench.report import RESULTS

PAGE: Final = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN: Final = "<!-- written by python -m bench: begin -->"
END: Final = "<!-- end -->"
_HEAD: Final = (
    "| name | what | measured | aim | | when | others' share of the machine |",
    "|---|---|---|---|---|---|---|",
)


def table(results: Path = RESULTS) -> str:
    """A row for each aim of each result that is kept, in the order of their names."""
    documents = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    return "\n".join([*_HEAD, *(row for document in documents for row in _rows(document))])


def _rows(document: Mapping[str, Any]) -> Iterator[str]:
    when = document["measured_at"][:10]
    others = _others(document)
    for aim in document["aims"]:
        sign = ">=" if aim["larger_is_better"] else "<="
        word = "met" if aim["met"] else "**missed**" if aim.get("kept_up", True) else "**missed**: did not keep up"
        measured, hoped = (_number(aim[which], aim["unit"]) for which in ("measured", "aim"))
        yield f"| `{document['name']}` | {aim['what']} | {measured} | {sign} {hoped} | {word} | {when} | {others} |"


def _others(document: Mapping[str, Any]) -> str:
    """What was no part of the measurement, of both cores: above a few percent, the times say little."""
    window_s = document["cpu_window_s"]
    seconds = document["cpu_seconds"].get(OTHERS)
    if seconds is None or not window_s:
        return "-"
    return f"{100 * seconds / (window_s * document['machine'].get('cores', 1)):.0f} %"


def _number(value: float, unit: str) -> str:
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    gap = "" if unit.startswith("/") or not unit else " "
    return f"{value:,.{digits}f}{gap}{unit}"


def write(page: Path = PAGE, results: Path = RESULTS) -> None:
    """Put the table where the page has its place for it."""
    page.write_text(replaced(page.read_text(), table(results)))


def replaced(text: str, found: str) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"The page has no place for the table: {BEGIN} ... {END}.")
    return f"{before}{BEGIN}\n\n{found}\n\n{END}{after}"
