"""Running a target: first what failed once, then the seeds as they are, then broken ones; a failing input is made as small as it can be.

An input fails when its target raises what it may not, or takes longer than it may.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from fuzzing.mutations import mutate

FAILED: Final = Path(__file__).with_name("inputs_that_failed.txt")
INPUT_S_MAX: Final = 0.05  # of one input, which has at most 64 KiB
_TRIES: Final = 4  # of one that took longer: was it the input, or the garbage collector?
_KEPT_MAX: Final = 400  # inputs that were answered in a new way
_KEPT_BYTES_MAX: Final = 4_096  # of each: large ones are slow to change, and seldom tell more
_SHRINKING_S: Final = 10.0


class Unforeseen(Exception):
    """The service logged an error: its last resort, where it did not know what else to do."""


class TooSlow(Exception):
    """It took longer than INPUT_S_MAX of this thread's time, each time."""


@dataclass(frozen=True)
class Target:
    """A parser. `check` answers in a word or two what became of the input, and raises if that may not be."""

    name: str
    about: str
    seeds: list[bytes]
    check: Callable[[bytes], str]
    structure: Callable[[Random, bytes, bytes], bytes]


@dataclass(frozen=True)
class Finding:
    target: str
    data: bytes
    error: str

    def __str__(self) -> str:
        return f"{self.target} fails on an input of {len(self.data):,} bytes:\n\n{self.target} {self.data!r}\n\n{self.error}"


@dataclass
class Run:
    """One target with one seed. `go` may be called again and again, and goes on where it was."""

    target: Target
    seed: int
    inputs: int = 0
    spent_s: float = 0.0
    answers: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._chance = Random(f"{self.seed}/{self.target.name}")
        self._pool = list(self.target.seeds)
        self._first: Iterator[bytes] = iter([*failed_once(self.target.name), *self.target.seeds])
        self._room = len(self._pool) + _KEPT_MAX

    def go(self, seconds: float) -> Finding | None:
        began_s = time.monotonic()
        finding = None
        while finding is None and time.monotonic() - began_s < seconds:
            finding = self._one()
        self.spent_s += time.monotonic() - began_s
        return finding

    def _one(self) -> Finding | None:
        data = next(self._first, None)
        if data is None:
            data = mutate(self._chance, self._chance.choice(self._pool), self._pool, self.target.structure)
        self.inputs += 1
        try:
            answer = measured(self.target, data)
        except Exception as error:
            failed = error
        else:
            self._learn(data, answer)
            return None
        return Finding(self.target.name, *shrunk(self.target, data, failed))

    def _learn(self, data: bytes, answer: str) -> None:
        if answer not in self.answers:
            self.answers.add(answer)
            if len(self._pool) < self._room and len(data) <= _KEPT_BYTES_MAX:
                self._pool.append(data)


class _Ears(logging.Handler):
    """What the service logs about one input."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(self.format(record))
        if record.levelno >= logging.ERROR:
            raise Unforeseen(record.getMessage()) from (record.exc_info or (None, None))[1]


@contextmanager
def listening() -> Iterator[list[str]]:
    """What the service logs meanwhile, which nobody else hears; an error is raised where it is logged."""
    ears, logger = _Ears(), logging.getLogger("roskva")
    propagating, logger.propagate = logger.propagate, False
    logger.addHandler(ears)
    try:
        yield ears.heard
    finally:
        logger.removeHandler(ears)
        logger.propagate = propagating


def measured(target: Target, data: bytes) -> str:
    for _ in range(_TRIES):
        with listening():
            began_s = time.thread_time()
            answer = target.check(data)
            took_s = time.thread_time() - began_s
        if took_s <= INPUT_S_MAX:
            return answer
    raise TooSlow(f"{len(data):,} bytes took {took_s * 1000:.0f} ms; {INPUT_S_MAX * 1000:.0f} are allowed")


def shrunk(target: Target, data: bytes, error: Exception) -> tuple[bytes, str]:
    """The smallest input found that still fails in the same way, and how: parts are left out, large ones first, as long as that helps."""

    def fails(candidate: bytes) -> bool:
        nonlocal error
        try:
            measured(target, candidate)
        except Exception as another:
            if type(another) is type(error):
                error = another
                return True
        return False

    until_s = time.monotonic() + _SHRINKING_S
    size = len(data) // 2 + 1
    while size and time.monotonic() < until_s:
        at, before = 0, len(data)
        while at < len(data) and time.monotonic() < until_s:
            candidate = data[:at] + data[at + size :]
            if fails(candidate):
                data = candidate
            else:
                at += size
        if len(data) == before or size > 1:
            size //= 2
    return data, "".join(traceback.format_exception(error, limit=-6))


def failed_once(name: str) -> list[bytes]:
    """The inputs of this target that failed once: lines of a target's name and a Python literal, or a product of one: b"[" * 2000."""
    words = [line.split(" ", 1) for line in FAILED.read_text().splitlines() if line and not line.startswith("#")]
    return [eval(literal, {"__builtins__": {}}) for target, literal in words if target == name]


def keep(finding: Finding) -> None:
    with FAILED.open("a") as file:
        file.write(f"{finding.target} {finding.data!r}\n")
