"""`roskva load`: shows how a load of simulated clients goes, on one line that moves or on plain ones, and ends with a table or JSON."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import urllib.parse
from collections import deque
from pathlib import Path
from typing import Any, Final

from roskva.address import is_loopback
from roskva.cli.http import checked_url
from roskva.cli.settings import secret_in, settings_from
from roskva.errors import BadRequest, RoskvaError
from roskva.load.measuring import NUMBERS, Counts, Latencies, Report
from roskva.load.plan import Plan
from roskva.load.processes import Load, Target
from roskva.load.state import read_tokens, write_tokens

TRUSTED_KEY: Final = "ROSKVA_TRUSTED_KEY"
_WINDOW_S: Final = 5.0  # of the live rates and percentiles
_PLAIN_EVERY_S: Final = 5.0
_DRAIN_S: Final = 15.0
_POLL_S: Final = 2.0


def load(arguments: argparse.Namespace) -> int:
    url = checked_url(arguments.url)
    plan = plan_of(arguments)
    target = Target(url, _trusted_key(url, arguments), _secret(arguments.publish_key, "publish key"))
    tokens = read_tokens(arguments.state, plan) if arguments.state else [""] * plan.clients
    run = _Run(plan, arguments.seconds)
    with Load(plan, target, arguments.processes, tokens) as running:
        run.follow(running)
        if arguments.state:
            write_tokens(arguments.state, plan, running.tokens())
    document = run.document()
    print(json.dumps(document) if arguments.json else "\n".join(table(document)), flush=True)
    return 0 if run.fine else 1


def plan_of(arguments: argparse.Namespace) -> Plan:
    if arguments.objects and arguments.fan_out:
        raise BadRequest("--objects and --fan-out say the same in two ways: give one of them.")
    if arguments.rate and arguments.update_every_s:
        raise BadRequest("--rate and --update-every-s are two ways to say how much is published: give one of them.")
    if arguments.processes > arguments.clients or arguments.lines > arguments.clients:
        raise BadRequest("There are fewer clients than lines or processes.")
    registrations = arguments.clients * arguments.registrations
    objects = arguments.objects or max(arguments.registrations, registrations // (arguments.fan_out or 1))
    return Plan(
        clients=arguments.clients,
        registrations=arguments.registrations,
        objects=objects,
        application=arguments.application,
        object_prefix=f"{arguments.prefix}/",
        device_prefix=f"{arguments.prefix}-",
        arrivals_per_s=arguments.arrivals_per_s,
        heartbeat_s=arguments.heartbeat_s or 0.0,
        update_every_s=arguments.update_every_s or 0.0,
        rate_per_s=arguments.rate or 0.0,
        batch=arguments.batch,
        drop=arguments.drop,
        lines=arguments.lines,
        resume=arguments.resume,
    )


def _trusted_key(url: str, arguments: argparse.Namespace) -> str:
    """Of --key or the environment; else that of the service on this machine: what listens elsewhere must not learn it."""
    if arguments.key:
        return _secret(arguments.key, "key of trusted servers")
    if is_loopback(urllib.parse.urlsplit(url).hostname or ""):
        from roskva.keys import trusted_key

        try:
            if found := trusted_key(settings_from(arguments).data):
                return found
        except RoskvaError:
            pass  # settings that the service would refuse, too
    raise BadRequest(f"No key of trusted servers is known. Give --key, {TRUSTED_KEY} or --data: it is `trusted` of DATA/keys.json.")


def _secret(text: str, what: str) -> str:
    return secret_in(Path(text[1:]), what) if text.startswith("@") else text


class _Run:
    """Follows one load from the first arrival to the last word."""

    def __init__(self, plan: Plan, seconds: float | None) -> None:
        self._plan = plan
        self._seconds = seconds
        self._began_s = time.monotonic()
        self._in_sync_s: float | None = None  # when all were, for the first time
        self._until_s: float | None = None
        self._asked_to_end = False
        self._drained = False
        self._recent: deque[tuple[float, Counts, Latencies]] = deque()
        self._all = Latencies()  # of the measured time
        self._answers = Latencies()
        self._last: Report | None = None
        self._measured_from = (self._began_s, Counts())
        self._measured_to = (self._began_s, Counts())
        self._shown_s = 0.0
        self._moves = sys.stderr.isatty()
        self._down = ""

    @property
    def fine(self) -> bool:
        """Everybody arrived and was told everything."""
        counts = self._measured_to[1] if self._last is None else self._last.counts
        return self._drained and counts.missing == 0 and counts.in_sync == self._plan.clients

    def follow(self, running: Load) -> None:
        handlers = {number: signal.signal(number, self._ask_to_end) for number in (signal.SIGINT, signal.SIGTERM)}
        draining = False
        try:
            while not running.is_done:
                report = running.poll(_POLL_S)
                now_s = time.monotonic()
                if report is not None:
                    self._take(report, now_s, draining)
                if self._in_sync_s is None and report is not None and report.counts.in_sync == self._plan.clients:
                    self._begin_measuring(running, report, now_s)
                over = self._until_s is not None and now_s >= self._until_s
                if (over or self._asked_to_end) and not draining:
                    draining = True
                    running.drain(_DRAIN_S)
            self._drained = True
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            if self._moves:
                print(file=sys.stderr)

    def _ask_to_end(self, *_: object) -> None:
        if self._asked_to_end:
            raise KeyboardInterrupt  # twice: at once
        self._asked_to_end = True

    def _begin_measuring(self, running: Load, report: Report, now_s: float) -> None:
        self._in_sync_s = now_s
        self._until_s = None if self._seconds is None else now_s + self._seconds
        self._all, self._answers = Latencies(), Latencies()
        self._measured_from = (now_s, report.counts)
        running.publish()
        self._say(f"all {self._plan.clients:,} clients are in sync after {now_s - self._began_s:.1f} s")

    def _take(self, report: Report, now_s: float, draining: bool) -> None:
        self._last = report
        self._all.add(report.latencies)
        self._answers.add(report.answers)
        if not draining:
            self._measured_to = (now_s, report.counts)
        if report.line_down and not self._down:
            self._say(f"a line to the service is down: {report.line_down}. It is tried again; clients speak again when it is back.")
        elif self._down and not report.line_down:
            self._say("all lines are up again")
        self._down = report.line_down
        self._recent.append((now_s, report.counts, report.latencies))
        while len(self._recent) > 2 and now_s - self._recent[0][0] > _WINDOW_S:
            self._recent.popleft()
        if self._moves or now_s - self._shown_s >= _PLAIN_EVERY_S:
            self._shown_s = now_s
            self._show(progress(self._plan, list(self._recent), now_s - self._began_s))

    def _show(self, line: str) -> None:
        if self._moves:
            width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
            print(f"\r\x1b[2K{line[:width]}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def _say(self, what: str) -> None:
        print(("\r\x1b[2K" if self._moves else "") + f"roskva: {what}", file=sys.stderr, flush=True)

    def document(self) -> dict[str, Any]:
        """What happened from when all were in sync until the end, and in all."""
        counts = Counts() if self._last is None else self._last.counts
        (from_s, before), (to_s, in_time) = self._measured_from, self._measured_to
        seconds = max(to_s - from_s, 0.001)
        since = {name: getattr(counts, name) - getattr(before, name) for name in NUMBERS}
        # What came while the last were waited for is in the numbers, and not in the rates: those would hide that it came late.
        per_s = {name: round((getattr(in_time, name) - getattr(before, name)) / seconds, 1) for name in ("published", "notified")}
        return {
            "clients": self._plan.clients,
            "in_sync": counts.in_sync,
            "in_sync_after_s": None if self._in_sync_s is None else round(self._in_sync_s - self._began_s, 2),
            "registrations": counts.registered,
            "objects": self._plan.objects,
            "seconds": round(seconds, 2),
            "published": since["published"],
            "published_per_s": per_s["published"],
            "notified": since["notified"],
            "notified_per_s": per_s["notified"],
            "latency_ms": self._all.summary(),
            "publish_ms": self._answers.summary(),
            "messages_sent": since["sent"],
            "messages_received": since["received"],
            "bytes_sent": since["bytes_sent"],
            "bytes_received": since["bytes_received"],
            **{name: getattr(counts, name) for name in _IN_ALL},
            "errors": dict(counts.errors),
            "last_error": counts.said,
        }


_IN_ALL: Final = (
    *("missing", "unknown", "told_earlier", "repeated", "heartbeats", "retries", "syncs", "started_anew", "interrupted"),
    *("dropped", "overflowed", "publish_refused", "publish_lost", "publish_skipped"),
)
_IN_WORDS: Final = {
    "missing": "accepted versions that a client was not told of",
    "unknown": "times told unknown",
    "told_earlier": "versions of before this run",
    "repeated": "notifications of what was known",
    "heartbeats": "heartbeats",
    "retries": "messages repeated for want of an answer",
    "syncs": "registrations stated anew",
    "started_anew": "handshakes asked for by the service",
    "interrupted": "lines that broke",
    "dropped": "messages dropped on purpose",
    "overflowed": "messages that the lines had no room for",
    "publish_refused": "updates refused",
    "publish_lost": "updates without an answer",
    "publish_skipped": "updates not sent, since too many waited",
}


def progress(plan: Plan, recent: list[tuple[float, Counts, Latencies]], elapsed_s: float) -> str:
    """One line: how many there are, and what the last seconds brought."""
    (from_s, before, _), (to_s, counts, _) = recent[0], recent[-1]
    seconds = max(to_s - from_s, 0.001)
    latencies = Latencies()
    for _, _, some in recent[1:]:
        latencies.add(some)
    line = (
        f"{elapsed_s:5.0f} s  {counts.arrived:,} of {plan.clients:,} clients, {counts.in_sync:,} in sync,"
        f" {counts.registered:,} registrations"
        f"  {(counts.published - before.published) / seconds:,.0f} publishes/s"
        f"  {(counts.notified - before.notified) / seconds:,.0f} notifications/s"
    )
    if latencies.count:
        line += "  ms: " + ", ".join(f"{name} {value:,.0f}" for name, value in latencies.summary().items())
    errors = sum(counts.errors.values())
    return f"{line}  {errors:,} errors, the last: {counts.said}" if errors else line


def table(document: dict[str, Any]) -> list[str]:
    in_sync_s = document["in_sync_after_s"]
    latency, answers = (", ".join(f"{name} {value:,.1f}" for name, value in document[key].items()) for key in ("latency_ms", "publish_ms"))
    lines = [
        f"clients        {document['in_sync']:,} of {document['clients']:,} in sync"
        + (f", all of them after {in_sync_s:,.1f} s" if in_sync_s is not None else ""),
        f"registrations  {document['registrations']:,} of {document['objects']:,} objects",
        f"measured       {document['seconds']:,.1f} s",
        f"publishes      {document['published']:,}, {document['published_per_s']:,.1f}/s; answered in ms: {answers}",
        f"notifications  {document['notified']:,}, {document['notified_per_s']:,.1f}/s",
        f"latency        ms, from when a publish was due to when a client was told: {latency}",
        f"sent           {document['messages_sent']:,} messages of clients, {document['bytes_sent']:,} bytes",
        f"received       {document['messages_received']:,} messages for clients, {document['bytes_received']:,} bytes",
    ]
    lines += [f"               {document[name]:,} {words}" for name, words in _IN_WORDS.items() if document[name]]
    lines += [f"               {count:,} times the error {code}" for code, count in sorted(document["errors"].items())]
    if document["last_error"]:
        lines.append(f"               the last one said: {document['last_error']}")
    return lines
