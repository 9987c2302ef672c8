"""`roskva capture`: the publisher and, if [roskva] is in the settings, Roskva's own subscriber, until Ctrl-C; restarts what dies.

`publisher` and `notifier` are the parts alone, for a supervisor of one's own. See keeping.py for the loop that keeps them running, and for
the lock of the data directory.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from roskva.capture.running.notifier import notify
from roskva.capture.running.places import CONTROL, check_places, datamarkers_of
from roskva.capture.running.publisher import publish
from roskva.capture.running.tls import for_publisher
from roskva.capture.settings import CaptureSettings, load
from roskva.cli import processes
from roskva.cli.capture_control import LOCK, NotRunning, ask, config_of
from roskva.cli.keeping import FIRST_STARTS_MAX, PROGRAM, Display, Keeper, data_directory, environment
from roskva.cli.settings import operator_key
from roskva.cli.supervise import Child
from roskva.errors import AddressInUse, InvalidSetting, RoskvaError

log = logging.getLogger(__name__)

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
STOP_GRACE_S: Final = 12.0  # the publisher waits 5 s for its flows to be given back, and 5 s for its readers
SILENCE_S_MAX: Final = 15.0  # a publisher that answered before, and does not for so long, is ended
MISUSED: Final = 2  # the exit status of a part that no restart helps
_ASK_S: Final = 1.0
_ASK_FIRST_S: Final = 0.1  # until it answers for the first time
# A row is a handful of new objects, and goes by its reference counts: with Python's own (700, 10, 10) the collector walks through
# thousands of them for each batch, and finds nothing.
_COLLECTED_AFTER: Final = (50_000, 20, 100)


def capture(arguments: argparse.Namespace, program: Sequence[str] = PROGRAM) -> int:
    """Run until a signal. 0: stopped cleanly; 1: could not start."""
    settings = load(config_of(arguments))
    check_places(settings)
    datamarkers_of(settings, arguments.datamarkers or "")
    for_publisher(settings)
    if not settings.applications:
        raise InvalidSetting("Nobody subscribes: the settings of capture need [roskva] with a mapping, or an [applications.NAME].")
    with data_directory(settings.publisher.data, "publisher.data", LOCK, "roskva capture", STOP_GRACE_S) as run:
        return Supervisor(settings, run, Display(sys.stdout), arguments, program).run()


def publisher(arguments: argparse.Namespace) -> int:
    """The part that reads the log. Ends with MISUSED if no restart would help."""

    async def work(settings: CaptureSettings, stop: asyncio.Event) -> None:
        def ready(address: str) -> None:
            _collect_rarely()
            log.info("The publisher listens on %s.", address)

        await publish(settings, stop, arguments.metrics or "", arguments.datamarkers or "", ready)

    return _part(arguments, work)


def notifier(arguments: argparse.Namespace) -> int:
    """The part that publishes versions."""

    async def work(settings: CaptureSettings, stop: asyncio.Event) -> None:
        if settings.roskva is None:
            raise InvalidSetting("There is no [roskva] in the settings of capture: it says where versions are published.")
        key = operator_key(settings.roskva.url, argparse.Namespace())

        def ready(url: str) -> None:
            _collect_rarely()
            log.info("Versions are published at %s.", url)

        await notify(settings, stop, key, ready)

    return _part(arguments, work)


def _collect_rarely() -> None:
    """Once all is loaded: what is there stays, and is never walked through again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTED_AFTER)


def _part(arguments: argparse.Namespace, work: Callable[[CaptureSettings, asyncio.Event], Coroutine[Any, Any, None]]) -> int:
    settings = load(config_of(arguments))
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stderr)
    processes.end_with_parent(os.environ)

    async def until_told() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await work(settings, stop)

    try:
        asyncio.run(until_told())
    except RoskvaError as error:
        log.critical("%s", error)
        return 1 if error.transient or isinstance(error, AddressInUse) else MISUSED
    return 0


class Pulse(threading.Thread):
    """Asks the publisher every second whether it lives, beside the supervisor's loop, which must never wait for an answer."""

    def __init__(self, control: Path) -> None:
        super().__init__(name="pulse", daemon=True)
        self.answered = 0.0  # when it last did, by time.monotonic
        self._control = control
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(_ASK_S if self.answered else _ASK_FIRST_S):
            try:
                ask(self._control, "flows", SILENCE_S_MAX, application="-")
            except NotRunning:
                continue
            except RoskvaError:
                pass  # it answers, whatever it says
            self.answered = time.monotonic()

    def stop(self) -> None:
        self._stopped.set()


class Supervisor(Keeper):
    def __init__(self, settings: CaptureSettings, run: str, show: Display, arguments: argparse.Namespace, program: Sequence[str]) -> None:
        super().__init__(show)
        self._settings, self._arguments, self._program = settings, arguments, program
        options = ("metrics", "datamarkers")
        handed_on = [f"--{name}={value}" for name in options if (value := getattr(arguments, name))]
        self._publisher = self._child("publisher", run, *handed_on)
        self._children = [self._publisher]
        if settings.roskva is not None:
            self._children.append(self._child("notifier", run))
        self._pulse = Pulse(settings.publisher.data / CONTROL)
        self._served = False

    def _child(self, part: str, run: str, *options: str) -> Child:
        command = [*self._program, "capture", part, "--config", str(config_of(self._arguments)), *options]
        return Child(part, command, environment(), run, self._settings.publisher.data / "log" / f"{part}.log")

    def run(self) -> int:
        self.show.step("data directory", str(self._settings.publisher.data))
        self._pulse.start()
        return super().run()

    def wanted(self) -> Sequence[Child]:
        return self._children

    def verdict(self, child: Child, now: float) -> str | None:
        """One that never answered may wait for its database, for as long as it takes."""
        silent_s = now - self._pulse.answered
        if child is self._publisher and self._pulse.answered > child.started and silent_s > SILENCE_S_MAX:
            return f"did not answer for {silent_s:.0f} s"
        return None

    def hopeless(self, child: Child, status: int | None) -> bool:
        never = child is self._publisher and not self._served and child.starts >= FIRST_STARTS_MAX
        return never or (status == MISUSED and child.starts == 1)

    def look(self, now: float) -> None:
        if not self._served and self._pulse.answered > self._publisher.started > 0.0:
            self._served = True
            self.show.step("publisher", f"reads, and listens on {self._settings.publisher.listen}")
            self._welcome()

    def _welcome(self) -> None:
        config = f" --config {self._arguments.config}" if self._arguments.config else ""
        self.show.line()
        self.show.line(f"  status      roskva capture status{config}")
        self.show.line(f"  logs        {self._settings.publisher.data / 'log'}")
        if self._settings.roskva is not None:
            self.show.line(f"  versions    of {self._settings.roskva.application} at {self._settings.roskva.url}")
        self.show.line("\n  Ctrl-C stops it.")

    def stop(self) -> None:
        """The subscriber first, so that it acknowledges what it has published. A second Ctrl-C ends at once."""
        self._pulse.stop()
        for child in reversed(self._children):
            child.end(STOP_GRACE_S, hurry=self.hurry)
