"""`roskva capture status` and `roskva capture flows`: what a publisher and Roskva's own subscriber say of themselves, the worst first."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from roskva.capture.running.places import CONTROL, NOTIFIER
from roskva.capture.settings import CaptureSettings, load
from roskva.capture.watching import FlowLag, Level, in_bytes, lags, log_share
from roskva.cli.capture_control import NotRunning, ask, asked, config_of
from roskva.errors import RoskvaError

FLOWS_SHOWN: Final = 20  # of many; --all shows the rest
NOTIFIER_S_MAX: Final = 5.0


def status(arguments: argparse.Namespace) -> int:
    """0: all is well; 1: something does not work, or a flow is near the end of its log. A script may ask."""
    settings = None if arguments.data else load(config_of(arguments))
    data = Path(arguments.data) if settings is None else settings.publisher.data
    answer = ask(data / CONTROL, "status")
    free = answer["log"].get("disk_free_bytes")
    notifier = _notifier(data, settings)
    if arguments.json:
        answer["log"]["share"] = log_share(answer["log"], free).share
        answer["flows"] = [{**lag.flow, "lag_share": lag.share, "level": str(lag.level)} for lag in lags(answer, free)]
        print(json.dumps(answer if notifier is None else {**answer, "roskva": notifier}))
    else:
        print("\n".join(status_lines(answer, free, notifier, None if arguments.all else FLOWS_SHOWN)))
    return 1 if is_wrong(answer, free, notifier) else 0


def _notifier(data: Path, settings: CaptureSettings | None) -> Mapping[str, Any] | None:
    """None: there is none, and none is wanted."""
    try:
        found: Mapping[str, Any] = ask(data / NOTIFIER, "status", NOTIFIER_S_MAX)
        return found
    except NotRunning as error:
        if settings is None or settings.roskva is None:
            return None
        return {"problems": [f"Roskva's own subscriber does not run: {error.what}"]}
    except RoskvaError as error:
        return {"problems": [str(error)]}


def is_wrong(answer: Mapping[str, Any], free: int | None, notifier: Mapping[str, Any] | None) -> bool:
    near = [log_share(answer["log"], free).level, *(lag.level for lag in lags(answer, free))]
    return bool(answer["problems"]) or bool(notifier and notifier.get("problems")) or Level.ALARM in near


def status_lines(answer: Mapping[str, Any], free: int | None, notifier: Mapping[str, Any] | None, shown: int | None) -> Iterator[str]:
    held, rates = log_share(answer["log"], free), answer["rates"]
    yield f"publisher  {answer['publisher']} at {answer['address']}, of {answer['dataset']}"
    behind = "" if held.behind_bytes is None else f"; {in_bytes(held.behind_bytes)} held, {_percent(held.share)}{held.limit}"
    yield f"log        from {answer['log']['oldest']} to {answer['log']['end']}{behind}{_marked(held.level)}"
    yield f"read       {in_bytes(answer['bytes_read'])}, {in_bytes(rates['read_bytes_per_s'])}/s"
    sent = f"{in_bytes(answer['bytes_sent'])} in {answer['updates_sent']:,} updates"
    yield f"sent       {sent}, {in_bytes(rates['sent_bytes_per_s'])}/s, {rates['sent_updates_per_s']:,.0f} updates/s"
    if misplaced := ", ".join(f"{count:,} {reason}" for reason, count in answer.get("misplaced", {}).items() if count):
        yield f"shard 0    has changes whose own shard cannot be told: {misplaced} (roskva capture check says more)"
    for caravan in answer["caravans"]:
        name = "lead" if caravan["lead"] else f"no. {caravan['caravan']}"
        pace = "stands" if caravan["standing"] else f"reads at most {in_bytes(caravan['bytes_per_s_max'])}/s"
        yield f"caravan    {name} at {caravan['position']}: {caravan['flows']:,} flows, {pace}"
    for one in answer["subscribers"]:
        yield f"process    {one['member']} of {one['application']}: {one['flows']:,} flows, load {one['load']:g}"
    yield from flow_lines(lags(answer, free), shown)
    for one in answer["elsewhere"]:
        where = f"released by {one['owner']}" if one["released"] else f"at {one['owner']}"
        yield f"elsewhere  {one['flow']} {where}, datamarker {one['datamarker']}"
    yield from _notifier_lines(notifier)
    yield from (f"PROBLEM    {problem}" for problem in dict.fromkeys(answer["problems"]))  # several readers may meet the same


def flow_lines(all_of: Sequence[FlowLag], shown: int | None) -> Iterator[str]:
    for lag in all_of[:shown]:
        flow = lag.flow
        behind = [] if flow["lag_bytes"] is None else [f"{in_bytes(flow['lag_bytes'])} behind"]
        behind += [] if lag.share is None else [f"{lag.share:.0%} of what is kept"]
        behind += [] if lag.seconds is None else [f"{lag.seconds:,.1f} s"]
        name, how_far = f"{flow['application']}/{flow['shard']}", ", ".join(behind) or "nothing sent yet"
        yield f"flow       {name}: {_state(flow)}; {how_far}{_marked(lag.level)}"
        if counts := _counts(flow):
            yield f"             {counts}"
    if shown is not None and len(all_of) > shown:
        yield f"           and {len(all_of) - shown:,} more, none of them worse: --all shows them"


def _state(flow: Mapping[str, Any]) -> str:
    state = flow["state"]
    if state != "paused" and flow["why"]:
        return str(flow["why"])
    if state == "riding":
        return f"at {flow['member']}"
    means = {
        "new": "where it begins is not stored yet",
        "alone": "no process has it",
        "paused": f"paused ({flow['why']})",
        "choked": f"waits for its process, {flow['member']}",
        "waiting": f"waits for a caravan, at {flow['member']}",
    }
    return means.get(state, str(state))


def _counts(flow: Mapping[str, Any]) -> str:
    """What did not go as usual."""
    words = {
        "losses": "cut off the log unread",
        "discarded": "discarded",
        "too_old": "too old",
        "falls": "buffers discarded and read again",
        "refused": "acknowledgements refused",
    }
    return ", ".join(f"{flow[name]:,} {word}" for name, word in words.items() if flow[name])


def _notifier_lines(notifier: Mapping[str, Any] | None) -> Iterator[str]:
    if notifier is None:
        return
    if "published" in notifier:
        odd = [f"{count:,} rows: {name}" for name, count in notifier["rows"].items() if count]
        more = [f"{notifier[name]:,} {name}" for name in ("resets", "losses", "refused") if notifier[name]]
        told = f"{notifier['published']:,} versions published, {notifier['invalidated']:,} invalidations"
        yield f"roskva     {', '.join([told, *more, *odd])}"
    yield from (f"PROBLEM    {problem}" for problem in notifier["problems"])


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%} of "


def _marked(level: Level) -> str:
    return "" if level is Level.FINE else f"  <- {level}"


def flows(arguments: argparse.Namespace) -> int:
    """Every flow, as a line or as JSON."""
    answer = asked(arguments, "flows", application=arguments.application)
    if arguments.json:
        for flow in answer:
            print(json.dumps(flow))
        return 0
    found = lags({"flows": answer})
    print("\n".join(flow_lines(found, None)) if found else "This publisher has no such flow.")
    return 0
