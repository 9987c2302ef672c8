"""`roskva reset` and `roskva invalidate`: what is ordered for everyone who is registered. The service does it, in its own time."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from roskva.cli.http import checked_url, get_json, post_json
from roskva.cli.report import pipeline_report
from roskva.cli.settings import as_operator, publish_key
from roskva.errors import BadRequest, InvalidName, Unavailable
from roskva.keys import bearer
from roskva.model import check_application, name_from_text, name_to_text

_LOOK_S: Final = 0.5
_SILENCE_MAX_S: Final = 60.0  # a pipeline that died is back by then
_FAN_OUTS: Final = "fan-outs"


def reset(arguments: argparse.Namespace) -> int:
    application = check_application(arguments.application)
    url = checked_url(arguments.url)
    answer = post_json(f"{url}/v1/reset", {"application": application}, shown=as_operator(url, arguments))
    if arguments.json:
        print(json.dumps(answer))
    else:
        print(f'{application} counts in epoch {answer["epoch"]} now. Everyone registered is told "unknown"; lower versions count again.')
    return 0


def what_is_meant(text: str) -> dict[str, str]:
    """The request for APP, APP/NAME or APP/PREFIX*: a * at the end stands for whatever follows; anywhere else it is a character."""
    application, slash, name = text.partition("/")
    request = {"application": check_application(application)}
    if not slash:
        return request
    if not name:
        raise InvalidName(name, "it is empty; write APPLICATION alone for all of its objects")
    if not name.endswith("*"):
        return request | {"object": name_to_text(name_from_text(name))}
    prefix = name[:-1]
    return request | {"prefix": name_to_text(name_from_text(prefix))} if prefix else request


def invalidate(arguments: argparse.Namespace) -> int:
    url = checked_url(arguments.url)
    request = what_is_meant(arguments.what)
    key = publish_key(arguments)
    shown = as_operator(url, arguments)
    # First, so that nobody begins what nobody can wait for: the status is for operators.
    before = _Progress.of(get_json(f"{url}/v1/status", shown=shown)) if arguments.wait else None
    answer = post_json(f"{url}/v1/invalidate", request, shown=bearer(key) or shown)
    if before is None:
        _say(arguments, answer, f'{arguments.what}: accepted. Everyone registered is told "unknown".')
        return 0
    print(f"{arguments.what}: accepted, and durable", file=sys.stderr)
    now = _wait(url, shown, before, answer.get("time_ms", 0), arguments.timeout)
    if now is None:
        return 1
    # What the pipeline counts, it counts from its own start: of another one, nobody knows.
    told = now.invalidated - before.invalidated if now.boot == before.boot else None
    reached = "everyone registered" if told is None else f"{told:,} registrations"
    _say(arguments, {**answer, "told": told}, f'{arguments.what}: done, {reached} told "unknown".')
    return 0


def _wait(url: str, shown: Mapping[str, str], before: _Progress, since_ms: int, timeout_s: float) -> _Progress | None:
    """Until the pipeline says, later than `since_ms`, that nothing is left to fan out. None: it is said why nobody waits any longer."""
    end_s = time.monotonic() + timeout_s
    alive_s = time.monotonic()
    lag = before.lag
    while True:
        try:
            now = _Progress.of(get_json(f"{url}/v1/status", shown=shown))
        except Unavailable:
            now = _Progress(False, "", 0, lag, 0)  # a gateway or pipeline that died is started again
        if now.alive:
            alive_s = time.monotonic()
            if now.said_ms > since_ms and now.lag == 0:
                return now
        if time.monotonic() - alive_s > _SILENCE_MAX_S:
            print("roskva: the pipeline is not running: everyone is told when it is back.", file=sys.stderr)
            return None
        if time.monotonic() > end_s:
            print(f"roskva: not everyone is told after {timeout_s:g} s; the service goes on.", file=sys.stderr)
            return None
        if now.lag != lag:
            lag = now.lag
            print(f"  {lag:,} records of the fan-out to go", file=sys.stderr)
        time.sleep(_LOOK_S)


def _say(arguments: argparse.Namespace, answer: Mapping[str, Any], text: str) -> None:
    print(json.dumps(answer) if arguments.json else text)


@dataclass(frozen=True, slots=True)
class _Progress:
    """What the pipeline last said of the fan-out."""

    alive: bool
    boot: str
    said_ms: int
    lag: int
    invalidated: int

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> _Progress:
        report = pipeline_report(status)
        if report is None:
            raise BadRequest("The service does not tell of its pipeline: is it of another version?")
        raw = status["pipeline"]
        counts = raw.get("counts") or {}
        lag = sum(report.lag.get(_FAN_OUTS, {}).values())
        return cls(report.alive, str(raw.get("boot", "")), int(raw.get("said_ms") or 0), lag, int(counts.get("invalidated") or 0))
