"""Keeps the service's processes running: restarts what dies or stops making progress, and ends all of it at the end.

`Restarts` and `Progress` are plain policy, with the time as an argument. `Child` is one process with its log. keeping.py and
up.py join them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from roskva.cli import processes
from roskva.cli.http import Conversation
from roskva.cli.report import PipelineReport, pipeline_report
from roskva.durable import private_directory
from roskva.errors import RoskvaError

LOG_BYTES_MAX: Final = 16 << 20  # of one log file; one older one is kept beside it
GATEWAY_SILENCE_S: Final = 10.0  # a gateway that does not answer for so long is ended
REPORT_S: Final = 3.0  # for its report of the pipeline, which may be slow while the gateway is well: far less than that silence
GATEWAY_START_S: Final = 30.0
PIPELINE_START_S: Final = 120.0
STOP_GRACE_S: Final = 3.5  # for each of the two; a clean stop of both takes less than 10 s
_ERROR_LINE: Final = re.compile(r"\b(ERROR|CRITICAL|FATAL)\b")
_SHOWN_LINES_MAX: Final = 5  # in one look at a log


class Restarts:
    """How long to wait before the next start: 0.2 s, doubling to 30 s; from the beginning again after a minute of life."""

    def __init__(self, first_s: float = 0.2, longest_s: float = 30.0, reset_s: float = 60.0) -> None:
        self._first_s, self._longest_s, self._reset_s = first_s, longest_s, reset_s
        self._next_s = first_s

    def delay_s(self, lived_s: float) -> float:
        if lived_s >= self._reset_s:
            self._next_s = self._first_s
        delay_s = self._next_s
        self._next_s = min(self._next_s * 2, self._longest_s)
        return delay_s


class Progress:
    """Judges one start of the pipeline by what the gateway reports about it (the field `pipeline` of /v1/status).

    It has stalled when one of its queries had work all the while and did none of it. A moment without a report is no evidence.
    """

    def __init__(self, now: float, stall_s: float, pid: int, start_s: float = PIPELINE_START_S) -> None:
        self.running = False
        self._pid = pid
        self._stall_s, self._start_s = stall_s, start_s
        self._started = now
        self._moved: dict[str, float] = {}  # by query
        self._steps: dict[str, int] = {}

    def observe(self, now: float, report: PipelineReport | None) -> str | None:
        """Take a report (None: there is none); answers why the pipeline must be restarted, or None."""
        if report is None:
            self._moved = dict.fromkeys(self._moved, now)
            return None
        of_this_start = report.pid in (None, self._pid)  # else it is the last word of a predecessor
        self.running = self.running or (of_this_start and report.alive)
        if not self.running:
            return f"did not start within {self._start_s:g} s" if now - self._started > self._start_s else None
        for name, query in report.queries.items():
            if query.lag == 0 or query.steps != self._steps.get(name):
                self._steps[name], self._moved[name] = query.steps, now
            if now - self._moved[name] > self._stall_s:
                return f"has work for its query {name} and did none of it for {self._stall_s:g} s"
        return None


class LogFile:
    """A child's log: it appends by itself, we move it aside when it is large, and read what it says about errors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = self._size()

    def rotate(self) -> None:
        """Copy and empty it: the child has it open and goes on appending. Lines written in between may be lost.

        On a full disk the copy is left out: a log that grows on would take what little there is.
        """
        if self._size() <= LOG_BYTES_MAX:
            return
        aside = self.path.with_suffix(".log.1")
        try:
            shutil.copyfile(self.path, aside)
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink()
        with contextlib.suppress(OSError):  # somebody deleted it meanwhile
            os.truncate(self.path, 0)
        self._read = 0

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def new_lines(self) -> list[str]:
        """Whole lines since the last look."""
        if self._size() < self._read:  # it was deleted, and began anew
            self._read = 0
        data = self._from(self._read, 1 << 20)
        data = data[: data.rfind(b"\n") + 1]
        self._read += len(data)
        return data.decode(errors="replace").splitlines()

    def tail(self, lines: int = 5) -> list[str]:
        return self._from(max(0, self._size() - 8_192), -1).decode(errors="replace").splitlines()[-lines:]

    def _from(self, begin: int, length: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(begin)
                return file.read(length)
        except OSError:  # it is gone, with the data directory
            return b""


class Child:
    """One process of the service: started, watched, restarted with back-off, ended with everything that it started."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        run: str,
        log: Path,
        told: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`told`: further variables of the environment, asked for at each start."""
        self.name = name
        self._told = told
        self.run = f"{run}/{name}"
        self.log = LogFile(log)
        self.starts = 0
        self.started = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self._command, self._environment = list(command), dict(environment)
        self._restarts = Restarts()
        self._start_at = 0.0

    def start(self, now: float) -> str:
        """Answers why it cannot be started now, or nothing. The log's folder may be gone, or the disk full."""
        self.starts += 1
        self.started = now
        try:
            self.log.rotate()
            private_directory(self.log.path.parent)
            with self.log.path.open("ab") as file:
                self.process = processes.start(self._command, {**self._environment, **self._told()}, self.run, file)
        except OSError as error:
            return str(error)
        return ""

    def due(self, now: float) -> bool:
        return self.process is None and now >= self._start_at

    def ended(self) -> int | None:
        """The exit status, if it has ended by itself."""
        return None if self.process is None else self.process.poll()

    def ask_to_end(self) -> None:
        """Without waiting for it."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def end(self, grace_s: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """Leaves nothing of it running. Also after it died: what it had started may live on."""
        if self.process is None:
            return
        processes.end_run(self.run, grace_s if self.process.poll() is None else 0.0, [self.process.pid], hurry)
        self.process.wait()
        self.process = None

    def schedule(self, now: float) -> float:
        """Plan the next start after an end; answers in how many seconds."""
        delay_s = self._restarts.delay_s(now - self.started)
        self._start_at = now + delay_s
        return delay_s

    def errors(self) -> tuple[list[str], list[str]]:
        """New lines of the log, and those of them that tell of errors, a few at most."""
        lines = self.log.new_lines()
        return lines, [line for line in lines if _ERROR_LINE.search(line)][:_SHOWN_LINES_MAX]


class Watch(threading.Thread):
    """Asks one gateway every second how it is, beside the supervisor's loop, which must never wait for an answer.

    At its own door, since on the public port any of several may answer. Over one connection, and with patience: a gateway that works off
    ten thousand connects is busy and must not be ended for it.
    """

    def __init__(self, url: str, interval_s: float = 1.0, timeout_s: float = GATEWAY_SILENCE_S, report_s: float = REPORT_S) -> None:
        super().__init__(name="watch", daemon=True)
        self.answered = 0.0  # when it last answered, by time.monotonic
        self.pipeline: PipelineReport | None = None  # its last report; None: no report at the last look
        self._gateway, self._interval_s, self._report_s = Conversation(url, timeout_s), interval_s, report_s
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(0.1 if self.pipeline is None else self._interval_s):
            try:
                self._gateway.get_json("/healthz")
                self.answered = time.monotonic()
                self.pipeline = pipeline_report(self._gateway.get_json("/pipeline", timeout_s=self._report_s))
                self.answered = time.monotonic()
            except RoskvaError:
                self.pipeline = None
            except Exception:
                logging.getLogger(__name__).exception("the watch met something unexpected")
                self.pipeline = None
        self._gateway.close()

    def stop(self) -> None:
        self._stopped.set()
