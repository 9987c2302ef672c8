"""What `make bench` writes into the documents: tables of the kept results, so that no figure is older than its result.

docs/performance.md has every aim with what was measured last, when, and beside how much other work: a table of measurements as they are by
themselves, and one of smaller forms, which say so; neither replaces the other. It has the hops of `figure9`, too; docs/peers.md has ours
beside the figures of others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench import peers
from bench.accounting import OTHERS
from bench.report import RESULTS, SMALLER

PAGE: Final = Path(__file__).parents[1] / "docs" / "performance.md"
PEERS: Final = PAGE.with_name("peers.md")
BEGIN: Final = "<!-- written by python -m bench: begin -->"
BEGIN_HOPS: Final = "<!-- hops, written by python -m bench: begin -->"
END: Final = "<!-- end -->"
_HEAD: Final = (
    "| name | what | measured | aim | | when | others' share of the machine |",
    "|---|---|---|---|---|---|---|",
)
_HEAD_SMALLER: Final = (
    "| name | smaller form | what | measured | aim of the full size | | when | others' share of the machine |",
    "|---|---|---|---|---|---|---|---|",
)


def table(results: Path = RESULTS) -> str:
    """A row for each aim of each result that is kept, in the order of their names; one for a result that has none."""
    return "\n".join([*_HEAD, *(row for document in _kept(results) for row in _rows(document, results))])


def table_of_smaller(results: Path = SMALLER) -> str:
    """The same of what was measured in another form than its own; empty if nothing was."""
    rows = [row for document in _kept(results) for row in _rows(document, results)]
    return "\n".join([*_HEAD_SMALLER, *rows]) if rows else ""


def tables(results: Path = RESULTS) -> str:
    smaller = table_of_smaller(results / SMALLER.name)
    return table(results) + (f"\n\nIn smaller forms, of which the aims are not:\n\n{smaller}" if smaller else "")


def hops(results: Path = RESULTS) -> str:
    """Each hop of an update by the fast path and by the pipeline alone: its mean, and its share of the whole."""
    path = results / "figure9.json"
    if not path.exists():
        return "`figure9` was not measured in full size."
    document = json.loads(path.read_text())
    ways = [{hop["hop"]: hop for hop in document["figures"][way]} for way in ("fast_path", "pipeline_alone")]
    names = sorted(
        dict.fromkeys(name for way in ways for name in way), key=lambda name: max(list(way).index(name) for way in ways if name in way)
    )
    rows = [f"| {name} | {' | '.join(_hop(way.get(name)) for way in ways)} |" for name in names]
    wholes = " | ".join(f"**{_number(float(mean), 'ms')}**" for mean in document["figures"]["mean_ms"].values())
    return "\n".join(
        [
            f"| hop, mean of the samples of {document['measured_at'][:10]} | fast path | pipeline alone |",
            "|---|---|---|",
            *rows,
            f"| **all** | {wholes} |",
        ]
    )


def _hop(hop: Mapping[str, Any] | None) -> str:
    return f"{_number(hop['mean_ms'], 'ms')}, {100 * hop['share']:.0f} %" if hop else ""


def _kept(results: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]


def _rows(document: Mapping[str, Any], results: Path) -> Iterator[str]:
    when = document["measured_at"][:10]
    others = _others(document)
    form = f" {document['form']} |" if document.get("form") else ""
    plot = results / f"{document['name']}.svg"
    name = f"[`{document['name']}`]({os.path.relpath(plot, PAGE.parent)})" if plot.exists() else f"`{document['name']}`"
    if not document["aims"]:
        yield f"| {name} |{form} {document['settings'].get('load', '')} | - | none | | {when} | {others} |"
    for aim in document["aims"]:
        sign = ">=" if aim["larger_is_better"] else "<="
        word = "met" if aim["met"] else "**missed**" if aim.get("kept_up", True) else "**missed**: did not keep up"
        measured, hoped = (_number(aim[which], aim["unit"]) for which in ("measured", "aim"))
        yield f"| {name} |{form} {aim['what']} | {measured} | {sign} {hoped} | {word} | {when} | {others} |"


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


def write(page: Path = PAGE, page_of_peers: Path = PEERS, results: Path = RESULTS) -> None:
    """Put the tables where the pages have their places for them."""
    page.write_text(replaced(replaced(page.read_text(), tables(results)), hops(results), BEGIN_HOPS))
    page_of_peers.write_text(replaced(page_of_peers.read_text(), beside_peers(results)))


def beside_peers(results: Path = RESULTS) -> str:
    return peers.table({document["name"]: document for document in _kept(results)})


def replaced(text: str, found: str, place: str = BEGIN) -> str:
    before, begin, rest = text.partition(place)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"The page has no place for the table: {place} ... {END}.")
    return f"{before}{place}\n\n{found}\n\n{END}{after}"
