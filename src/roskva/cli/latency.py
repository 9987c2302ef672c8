"""`roskva latency`: how long updates take in the running service, and where the time goes (Thialfi 6.3, Figures 8 and 9).

Every gateway keeps histograms of what it has seen; those of all that can be reached are added up here.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from roskva.cli.http import checked_url, get_json
from roskva.cli.settings import as_operator
from roskva.errors import RoskvaError, Unavailable
from roskva.telemetry.histogram import LogHistogram
from roskva.telemetry.latency import (
    ACCEPT,
    FAN_OUT,
    FAST,
    PIPELINE,
    PUBLISHED_RECEIVED,
    TO_ACKNOWLEDGED,
    TO_SENT,
    TO_TOLD,
    Histograms,
    Shares,
    added,
    histograms_in,
    in_order,
)

_CLEAR: Final = "\x1b[H\x1b[2J"
_WITHIN_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000)
_LINES: Final = (
    (FAST, TO_SENT, "fast path, to the first attempt to send"),
    (FAST, TO_ACKNOWLEDGED, "fast path, to the acknowledgement"),
    (PIPELINE, TO_TOLD, "pipeline, to the Registrar's call"),
    (PIPELINE, TO_SENT, "pipeline, to the first attempt to send"),
    (PIPELINE, TO_ACKNOWLEDGED, "pipeline, to the acknowledgement"),
    (FAN_OUT, TO_TOLD, "fan-out, to the Registrar's call"),
    (FAN_OUT, TO_SENT, "fan-out, to the first attempt to send"),
    (FAN_OUT, TO_ACKNOWLEDGED, "fan-out, to the acknowledgement"),
)
_WAYS: Final = {FAST: "fast path", PIPELINE: "pipeline", FAN_OUT: "fan-out"}
_BAR: Final = 24

Ask = Callable[[str, str], dict[str, Any]]  # the address of a gateway and a path -> its answer


@dataclass(slots=True)
class Seen:
    """What the gateways that answered have measured, added up."""

    histograms: Histograms = field(default_factory=dict)
    gateways: int = 0
    missing: list[str] = field(default_factory=list)  # living members that could not be asked
    since_ms: int = 0  # when the first of them started
    stamps_per_s: float = 0.0
    sampled: int = 0
    backwards: int = 0

    def since(self, earlier: Seen) -> Seen:
        """What came after an earlier look."""
        nothing = LogHistogram()
        later = {name: found.since(earlier.histograms.get(name, nothing)) for name, found in self.histograms.items()}
        return Seen(
            {name: found for name, found in later.items() if found.counts},
            self.gateways,
            self.missing,
            self.since_ms,
            self.stamps_per_s,
            max(0, self.sampled - earlier.sampled),
            max(0, self.backwards - earlier.backwards),
        )


def latency(arguments: argparse.Namespace) -> int:
    url = checked_url(arguments.url)

    def ask(address: str, path: str) -> dict[str, Any]:
        return get_json(address + path, shown=as_operator(address, arguments))

    first, began_s = look(url, ask), time.monotonic()
    _show(first, arguments.json, f"since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(first.since_ms / 1_000))}")
    try:
        while arguments.watch:
            time.sleep(arguments.watch)
            seen = look(url, ask).since(first)
            if sys.stdout.isatty() and not arguments.json:
                print(_CLEAR, end="")
            _show(seen, arguments.json, f"in {time.monotonic() - began_s:.0f} s")
    except KeyboardInterrupt:
        pass  # how one ends it
    return 0


def _show(seen: Seen, as_json: bool, when: str) -> None:
    print(json.dumps(document(seen)) if as_json else "\n".join(lines(seen, when)), flush=True)


def look(url: str, ask: Ask) -> Seen:
    """Ask every living gateway, by its name: whichever of them is reached passes the question on."""
    members = [str(member["id"]) for member in ask(url, "/v1/status").get("members") or []]
    answers: dict[str, dict[str, Any]] = {}
    for path in ("/v1/inspect/latency", *(f"/v1/inspect/latency?member={identity}" for identity in members)):
        try:
            answer = ask(url, path)
        except RoskvaError:
            if not answers:
                raise
            continue  # said below
        answers[str(answer.get("member"))] = answer
    return added_up(list(answers.values()), sorted(set(members) - answers.keys()))


def added_up(answers: Sequence[Mapping[str, Any]], missing: list[str]) -> Seen:
    try:
        return Seen(
            added(histograms_in(answer) for answer in answers),
            len(answers),
            missing,
            min(int(answer["since_ms"]) for answer in answers),
            max(float(answer["stamps_per_s"]) for answer in answers),
            sum(int(answer["sampled"]) for answer in answers),
            sum(int(answer["backwards"]) for answer in answers),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Unavailable("A gateway answered in another form: it is of another version than this command.") from None


def lines(seen: Seen, when: str) -> list[str]:
    """For a person."""
    head = f"{seen.gateways:,} gateway{'s' if seen.gateways > 1 else ''}, {seen.sampled:,} updates sampled {when}"
    found = [head] + [f"not reached: {identity}" for identity in seen.missing]
    if not seen.stamps_per_s:
        return [*found, "Nothing is sampled: the setting stamps_per_s is 0."]
    whole = [(seen.histograms[way, hop], words) for way, hop, words in _LINES if (way, hop) in seen.histograms]
    if not whole:
        return [*found, "No sampled update has reached an online client yet: publish something that one is registered for."]
    found += ["", f"{'from the receipt':<42}{'samples':>9}{'p50':>9}{'p90':>9}{'p95':>9}{'p99':>9}{'largest':>9}"]
    for times, words in whole:
        parts = "".join(f"{_text(times.quantile(part)):>9}" for part in (0.5, 0.9, 0.95, 0.99))
        found.append(f"{words:<42}{times.count:>9,}{parts}{_text(times.largest):>9}")
    found += ["", f"{'part of them within':<42}" + "".join(f"{_text(1000 * bound):>7}" for bound in _WITHIN_MS)]
    found += [f"{words:<42}" + "".join(f"{_part(times, bound):>7}" for bound in _WITHIN_MS) for times, words in whole]
    for way in _WAYS:
        found += _share_lines(seen, way)
    apart = seen.histograms.get((ACCEPT, PUBLISHED_RECEIVED))
    if apart is not None:
        found += ["", f"before the receipt, by the publishers' clocks: p50 {_text(apart.quantile(0.5))}, p99 {_text(apart.quantile(0.99))}"]
    if seen.backwards:
        found += ["", f"{seen.backwards:,} times were below 0 and are left out: clocks differ, or were set."]
    return found


def _share_lines(seen: Seen, way: str) -> list[str]:
    shares = Shares(seen.histograms, way)
    if not any((way, hop) in seen.histograms for hop in shares.means_us):
        return []
    found = ["", f"{'what each hop adds, ' + _WAYS[way]:<42}{'mean':>9}{'share':>9}"]
    for hop, mean_us in shares.means_us.items():
        part = shares.share(hop)
        found.append(f"{hop:<42}{_text(mean_us):>9}{part:>9.0%}  {'#' * round(_BAR * part)}")
    return found


def document(seen: Seen) -> dict[str, Any]:
    """For programs: times in milliseconds, and the buckets as the gateways have them."""
    ways: dict[str, dict[str, Any]] = {}
    for way, hop, times in in_order(seen.histograms):
        parts = {f"p{part}_ms": times.quantile(part / 100) / 1000 for part in (50, 90, 95, 99)}
        ways.setdefault(way, {})[hop] = {"mean_ms": times.mean / 1000, **parts, **times.document()}
    shares = {
        way: {hop: found.share(hop) for hop in found.means_us} for way in _WAYS if len((found := Shares(seen.histograms, way)).means_us) > 1
    }
    return {
        "gateways": seen.gateways,
        "not_reached": seen.missing,
        "since_ms": seen.since_ms,
        "stamps_per_s": seen.stamps_per_s,
        "sampled": seen.sampled,
        "backwards": seen.backwards,
        "ways": ways,
        "shares": shares,
    }


def _part(times: LogHistogram, within_ms: int) -> str:
    return f"{100 * times.share_up_to(within_ms * 1000):.0f} %"


def _text(time_us: float) -> str:
    """Three digits are more than a sixteenth."""
    for unit, size in (("s", 1_000_000), ("ms", 1_000)):
        if time_us >= size:
            value = time_us / size
            return f"{value:.0f} {unit}" if value >= 100 or value == int(value) else f"{value:.1f} {unit}"
    return f"{time_us:.0f} us"
