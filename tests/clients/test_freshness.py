"""What a cached value is worth, in both languages: the same stories are told to both twins (client/freshness.py, freshness.ts), and after
every call both must have answered the same and hold the same.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
from typing import Any, Final

from roskva.client.actions import Notification
from roskva.client.freshness import Attempt, Choice, Entry, Pauses
from tests.clients.stdio import NODE, PACKAGE

STORIES: Final = 300
CALLS: Final = 60
CHOICES: Final = {Choice.SERVE: "serve", Choice.FETCH: "fetch", Choice.FAIL: "fail"}


class Told:
    """One story: each call is drawn, carried out by the Python twin, and written down for the other."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.seqno = 0
        self.pauses = Pauses(min_s=0.5, max_s=8.0, tries_max=3)
        self.entry = Entry(0.0, self.pauses)
        self.versioned = self.chance.random() < 0.7
        self.attempts: list[Attempt] = []
        self.calls: list[list[Any]] = []
        self.answers: list[Any] = []

    def version(self) -> str | None:
        return str(self.chance.choice([0, 3, self.chance.randrange(9), 2**63 - 1])) if self.versioned else None

    def call(self) -> None:
        chance, entry = self.chance, self.entry
        self.now += chance.choice([0.0, 0.25, 1.0, 20.0])
        until = chance.choice([None, self.now, self.now, self.now - 5.0])
        answer: Any = None
        match name := chance.choice(["noticed", "noticed", "begin", "begin", "adopt", "adopt", "adopt", "stored", "stored", *RARE]):
            case "restored":
                given: list[Any] = ["kept", self.version(), chance.randrange(2)]
                entry.restored("kept", _number(given[1]), given[2])
            case "noticed":
                self.seqno += 1
                given = [self.now, [chance.choice([None, self.version() or "1"]), chance.choice([0, 0, 1]), self.seqno]]
                answer = _told(entry.noticed(self.now, Notification(b"doc", _number(given[1][0]), given[1][1], self.seqno)))
            case "outdated":
                given = [self.now]
                entry.outdated(self.now)
            case "begin":
                given = [self.now, chance.choice([0, 0, 1])]
                self.attempts.append(entry.begin(*given))
                answer = [self.attempts[-1].mark, self.attempts[-1].began, self.attempts[-1].epoch]
            case "suffices" | "adopt" if not self.attempts:
                return
            case "suffices":
                given = [chance.randrange(len(self.attempts))]
                answer = entry.suffices(self.attempts[given[0]])
            case "adopt":
                given = [self.now, len(self.attempts) - 1, f"value at {self.now}", self.version(), chance.random()]
                answer = entry.adopt(self.now, self.attempts[-1], given[2], _number(given[3]), given[4])
            case "stored":
                given = []
                answer = _told(entry.stored())
            case "failed":
                given = [self.now, "no route", chance.random()]
                entry.failed(*given)
            case "choose":
                given = [self.now, until, chance.choice([0.0, 10.0, 1e6])]
                answer = CHOICES[entry.choose(*given)]
            case "standing":
                given = [self.now, until]
                standing = entry.standing(*given)
                answer = [str(standing.state), standing.for_s]
            case other:
                raise AssertionError(other)
        self.calls.append([name, *given])
        self.answers.append([answer, *self.left()])

    def left(self) -> list[Any]:
        entry = self.entry
        version = None if entry.version is None else str(entry.version)
        # The trouble names a version as its language writes it: None, or null. There is none to name where there is no version.
        held = [entry.value, entry.present, version, entry.epoch, entry.kept, entry.tries, entry.lagging, entry.trouble]
        times = [time if math.isfinite(time) else None for time in (entry.began, entry.fresh_since, entry.stale_since, entry.retry_at)]
        return [held, times, [entry.due, _told(entry.unacknowledged)]]


RARE: Final = ["restored", "outdated", "suffices", "failed", "choose", "choose", "standing", "standing"]


def _number(version: str | None) -> int | None:
    return None if version is None else int(version)


def _told(notifications: list[Notification]) -> list[Any]:
    return [[None if one.version is None else str(one.version), one.epoch, one.seqno] for one in notifications]


def test_both_twins_say_the_same_of_every_story() -> None:
    stories = [Told(seed) for seed in range(STORIES)]
    for story in stories:
        for _ in range(CALLS):
            story.call()
    pauses = {"minS": 0.5, "maxS": 8.0, "triesMax": 3}
    sent = json.dumps([{"pauses": pauses, "calls": story.calls} for story in stories])
    script = PACKAGE / "test" / "freshness-over-stdio.ts"
    played = subprocess.run([NODE, script], input=sent, stdout=subprocess.PIPE, text=True, encoding="utf-8", timeout=60, check=True)
    for story, answers in zip(stories, json.loads(played.stdout), strict=True):
        for call, ours, theirs in zip(story.calls, story.answers, answers, strict=True):
            assert ours == theirs, call
    outcomes = {(call[0], json.dumps(answer[0])) for story in stories for call, answer in zip(story.calls, story.answers, strict=True)}
    for expected in [("choose", '"fail"'), ("choose", '"serve"'), ("choose", '"fetch"'), ("adopt", "false"), ("suffices", "false")]:
        assert expected in outcomes, "the stories are too tame"
