"""`roskva status` and `roskva dead-letters`: what the gateway tells about the service, for a person or as JSON."""

from __future__ import annotations

import argparse
import json
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from roskva.cli.http import checked_url, get_json
from roskva.cli.report import PipelineReport, pipeline_report
from roskva.cli.settings import as_operator

_FOLLOW_S: Final = 1.0
_PAGE: Final = 500


def status(arguments: argparse.Namespace) -> int:
    """0 if the pipeline is alive, else 1: a script may ask."""
    url = checked_url(arguments.url)
    answer = get_json(f"{url}/v1/status", shown=as_operator(url, arguments))
    print(json.dumps(answer) if arguments.json else "\n".join(status_lines(answer)))
    report = pipeline_report(answer)
    return 0 if report is not None and report.alive else 1


def status_lines(answer: Mapping[str, Any]) -> list[str]:
    """The status as a small table: one line a topic, so that it fits any terminal."""
    report = pipeline_report(answer) or PipelineReport()
    members = answer.get("members") or []
    lines = [
        f"version    {answer.get('version', '?')}",
        f"gateways   {len(members)}: {', '.join(_member(member) for member in members)}",
        *_held_lines(answer),
        f"sessions   {answer.get('sessions', 0):,}",
        *_unfinished_lines(answer),
        f"pipeline   {_pipeline(report)}",
    ]
    for topic, counts in sorted(report.lag.items()):
        each = ", ".join(f"{partition}: {count:,}" for partition, count in sorted(counts.items()))
        lines.append(f"  lag      {topic}: {sum(counts.values()):,} records behind ({each})")
    lines.extend(f"  feed     {topic}: {_plain(what)}" for topic, what in sorted(_mapping(answer.get("feed")).items()))
    lines.extend(f"sweep      {name}: {_sweep(what)}" for name, what in sorted(_mapping(answer.get("sweeps")).items()))
    return lines


def _held_lines(answer: Mapping[str, Any]) -> list[str]:
    """What each of several gateways holds."""
    gateways = _mapping(answer.get("gateways"))
    if len(gateways) < 2:
        return []
    held = ((name, _mapping(what)) for name, what in sorted(gateways.items()))
    return [f"  {name}: {what.get('connections', 0):,} connections, {what.get('sessions', 0):,} sessions" for name, what in held]


def _unfinished_lines(answer: Mapping[str, Any]) -> list[str]:
    """What is not finished, put aside, lost or short; of an older service, what it says of it."""
    lines = []
    pending, owed, aside = (_mapping(answer.get(name)) for name in ("pending", "unacknowledged", "scratch"))
    if pending:
        lines.append(f"pending    {pending.get('registrations', 0):,} registrations of {pending.get('clients', 0):,} clients on their way")
    if owed:
        more = owed.get("rows_with_more", 0)
        rest = f"; {more:,} of their rows hold more" if more else ""
        lines.append(f"unacked    {owed.get('notifications', 0):,} notifications of {owed.get('clients', 0):,} clients online here{rest}")
    if answer.get("rows_to_read"):
        lines.append(f"marked     {answer['rows_to_read']:,} clients' rows to look at")
    if aside:
        lines.append(f"scratch    {aside.get('rows', 0):,}{' or more' if aside.get('more') else ''} put aside for later")
    incomplete = _mapping(answer.get("incomplete"))
    lines += [f"partition  {address} is {state}" for address, state in sorted(incomplete.items())]
    disk = _mapping(answer.get("disk"))
    if isinstance(disk.get("free_bytes"), int):
        full = " - publishes and registrations are refused until there is more" if disk.get("refusing") else ""
        lines.append(f"disk       {disk['free_bytes'] / (1 << 30):,.1f} GiB free{full}")
    return lines


def _pipeline(report: PipelineReport) -> str:
    if not report.alive:
        return "not running: updates are kept, and delivered when it is back"
    if report.batch is None:
        return "running, no batch yet"
    ago = "" if report.last_batch_age_s is None else f" {report.last_batch_age_s:.1f} s ago"
    return f"running, finished batch {report.batch}{ago}"


def _member(member: Any) -> str:
    if not isinstance(member, Mapping):
        return str(member)
    name = member.get("name") or member.get("member") or member.get("id") or "?"
    address = member.get("address") or member.get("url")
    silent = " (does not answer: what it holds is not counted)" if member.get("answers") is False else ""
    return (f"{name} at {address}" if address else str(name)) + silent


def _sweep(what: Any) -> str:
    """The last one of its kind."""
    record = _mapping(what)
    if not record:
        return str(what)
    swept = _mapping(record.get("swept"))
    counts = f"looked at {swept.get('looked_at', 0):,} rows, {swept.get('done', 0):,} done, {swept.get('refused', 0):,} refused"
    left = f", {swept['left']:,} left for the next time" if swept.get("left") else ""
    if record.get("state") == "running":
        return f"running, partition {record.get('partition', 0) + 1} of {record.get('partitions', 0)}, {counts}{left}"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.get("ended_ms", 0) / 1_000))
    error = f": {record['error']}" if record.get("error") else ""
    return f"{record.get('state', '?')} {when}, {counts}{left}{error}"


def _plain(what: Any) -> str:
    if isinstance(what, Mapping):
        return ", ".join(f"{name} {_plain(value)}" for name, value in what.items())
    return f"{what:,}" if isinstance(what, int) else str(what)


def dead_letters(arguments: argparse.Namespace) -> int:
    url = checked_url(arguments.url)
    letters = read_letters(url, arguments.follow, as_operator(url, arguments))
    try:
        for letter in letters if arguments.follow else islice(letters, arguments.limit):
            print(json.dumps(letter) if arguments.json else letter_text(letter), flush=True)
    except KeyboardInterrupt:
        if not arguments.follow:  # else it is how one ends it
            raise
    return 0


def read_letters(url: str, follow: bool, shown: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    """All dead letters, oldest first; with `follow`, also those to come."""
    cursor = ""
    while True:
        query = urllib.parse.urlencode({"after": cursor, "limit": _PAGE} if cursor else {"limit": _PAGE})
        page = get_json(f"{url}/v1/dead-letters?{query}", shown=shown)
        letters = page.get("letters") or []
        yield from letters
        moved = page.get("next") not in (None, "", cursor)
        cursor = page["next"] if moved else cursor
        if not letters or not moved:
            if not follow:
                return
            time.sleep(_FOLLOW_S)


def letter_text(letter: Mapping[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(letter.get("time_ms", 0) / 1_000))
    where = f"{letter.get('topic')}/{letter.get('partition')}@{letter.get('offset')}"
    return f"{when}  {where}  {letter.get('application') or '-'}  {letter.get('reason')}\n    {letter.get('value')}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
