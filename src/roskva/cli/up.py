"""`roskva up`: gateways and pipeline together on this machine, on the embedded engines, until Ctrl-C.

Shows each step of the start with its time, then where to go. It holds the public port, on which all its gateways listen
(gateway/sharing.py). See gateways.py for how many those are, keeping.py for the loop that keeps them running, and for the lock of the data
directory, supervise.py for when a process is restarted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
import urllib.parse
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from roskva.address import address_of, host_and_port
from roskva.cli.gateways import MEMBER, evenly_drawn, gateways_of
from roskva.cli.http import DOOR, get_json
from roskva.cli.keeping import FIRST_STARTS_MAX, PROGRAM, Display, Keeper, data_directory, environment
from roskva.cli.report import PipelineReport
from roskva.cli.supervise import GATEWAY_SILENCE_S, GATEWAY_START_S, STOP_GRACE_S, Child, Progress, Watch
from roskva.config import Settings
from roskva.errors import AddressInUse, RoskvaError
from roskva.gateway.sharing import RUN, SharedPort

SESSION_STARTED: Final = "pipeline: session started"  # what the pipeline prints
LOCK: Final = "up.lock"


def up(settings: Settings, arguments: argparse.Namespace, program: Sequence[str] = PROGRAM) -> int:
    """Run until a signal. 0: stopped cleanly; 1: could not start."""
    from roskva.pipeline.session import find_java_home

    find_java_home()  # says what to do if there is none, before anything is started
    show = Display(sys.stdout)
    with data_directory(settings.data, "data", LOCK, "roskva up", STOP_GRACE_S) as run:
        port = claim_port(settings)
        try:
            show.step("data directory", str(settings.data))
            return Supervisor(settings, port, run, show, arguments, program).run()
        finally:
            port.close()


def public_url(listen: str, tls: bool = False) -> str:
    """Where a person on this machine reaches the service that listens there."""
    host, port = host_and_port(listen)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{'https' if tls else 'http'}://{address_of(host, port)}"


def claim_port(settings: Settings) -> SharedPort:
    """The port, held for as long as `up` runs: port 0 becomes a free one; a port in use is refused with who answers there."""
    host, port = host_and_port(settings.listen)
    try:
        claimed = SharedPort(settings.listen, settings.data)
    except AddressInUse:
        raise AddressInUse(f"Port {port} on {host} is in use{_who_answers(settings.listen)}.") from None
    claimed.hold()
    return claimed


def _who_answers(listen: str) -> str:
    try:
        return ": a Roskva service answers there" if "alive" in get_json(f"{public_url(listen)}/healthz", 2.0) else ""
    except RoskvaError:
        return " by another program"


def _spelled() -> str:
    """How the person at this terminal starts `roskva`: the script may not be in the path."""
    script = Path(sys.argv[0])
    if shutil.which("roskva") is None and script.name == "roskva":
        return os.path.relpath(script)
    return "roskva"


class Supervisor(Keeper):
    """Gateways, and the pipeline as soon as they serve. `Watch` asks each gateway how it is."""

    def __init__(
        self,
        settings: Settings,
        port: SharedPort,
        run: str,
        show: Display,
        arguments: argparse.Namespace,
        program: Sequence[str],
    ) -> None:
        super().__init__(show)
        self._settings, self._arguments, self._program = settings, arguments, program
        listen = address_of(host_and_port(settings.listen)[0], port.port)
        self._port = port
        self._url = public_url(listen, tls=bool(settings.tls_certificate))
        self._pipeline = self._child("pipeline", run)
        self._watches: dict[Child, Watch] = {}  # by gateway
        self._ids: dict[str, str] = {}  # of the gateways, by name
        for name, options in gateways_of(settings).items():
            told = partial(self._drawn, name)
            gateway = self._child("gateway", run, "--listen", listen, "--share-port", "--name", name, *options, name=name, told=told)
            self._watches[gateway] = Watch(f"{DOOR}://{urllib.parse.quote(str(settings.data.absolute() / RUN / name))}.sock")
        self._progress = Progress(0.0, settings.pipeline_stall_s, 0)
        self._served = self._session = self._complete = False

    def _drawn(self, name: str) -> dict[str, str]:
        """The id of the next start of a gateway: no two starts have the same."""
        others = [drawn for other, drawn in self._ids.items() if other != name]
        self._ids[name] = evenly_drawn(others, self._settings.partitions)
        return {MEMBER: self._ids[name]}

    def _child(self, part: str, run: str, *options: str, name: str = "", told: Callable[[], Mapping[str, str]] = dict) -> Child:
        command = [*self._program, part, *self._handed_on(), *options]
        name = name or part
        return Child(name, command, environment(), run, self._settings.data / "log" / f"{name}.log", told)

    def _handed_on(self) -> Sequence[str]:
        handed = ["--data", str(self._settings.data)]
        if self._arguments.config is not None:
            handed += ["--config", str(self._arguments.config)]
        for pair in self._arguments.set:
            handed += ["--set", pair]
        if self._settings.insecure:
            handed += ["--set", "insecure=true"]
        return handed

    def run(self) -> int:
        for watch in self._watches.values():
            watch.start()
        return super().run()

    def wanted(self) -> Sequence[Child]:
        """The pipeline calls the gateway's Registrars: it has no use before."""
        return (*self._watches, self._pipeline) if self._served else tuple(self._watches)

    def started(self, child: Child, now: float) -> None:
        if child is self._pipeline and child.process is not None:
            self._progress = Progress(now, self._settings.pipeline_stall_s, child.process.pid)

    def verdict(self, child: Child, now: float) -> str | None:
        if child is self._pipeline:
            return self._progress.observe(now, self._report())
        answered = self._watches[child].answered
        if answered > child.started:
            return f"did not answer for {GATEWAY_SILENCE_S:g} s" if now - answered > GATEWAY_SILENCE_S else None
        return f"did not answer within {GATEWAY_START_S:g} s" if now - child.started > GATEWAY_START_S else None

    def _report(self) -> PipelineReport | None:
        """What the gateway that answered last says of the pipeline."""
        watches = [watch for watch in self._watches.values() if watch.pipeline is not None]
        return max(watches, key=lambda watch: watch.answered).pipeline if watches else None

    def hopeless(self, child: Child, status: int | None) -> bool:
        succeeded = self._complete if child is self._pipeline else self._served
        return not succeeded and child.starts >= FIRST_STARTS_MAX

    def said(self, child: Child, lines: Sequence[str]) -> None:
        if child is self._pipeline and not self._session and SESSION_STARTED in lines:
            self._session = True
            self.show.step("Spark", "session is ready")

    def look(self, now: float) -> None:
        """Tell of the steps of the first start."""
        self._port.renew()
        if not self._served and all(watch.answered > gateway.started > 0.0 for gateway, watch in self._watches.items()):
            self._served = True
            count = len(self._watches)
            self.show.step(*(("gateway", f"listens on {self._url}") if count == 1 else ("gateways", f"{count} listen on {self._url}")))
        if not self._complete and self._progress.running:
            self._complete = True
            self.show.step("pipeline", "is running")
            self._welcome()

    def _welcome(self) -> None:
        application = next(iter(self._settings.applications))
        elsewhere = "" if self._url.endswith(":8470") else f" --url {self._url}"
        command = _spelled()
        self.show.line()
        self.show.line(f"  demo page   {self._url}/")
        self.show.line(f"  watch       {command} watch {application}/hello{elsewhere}")
        self.show.line(f"  publish     {command} publish {application}/hello 7{elsewhere}")
        self.show.line(f"  logs        {self._settings.data / 'log'}")
        self.show.line("\n  Ctrl-C stops it.")
        if self._arguments.open:
            webbrowser.open(f"{self._url}/")

    def stop(self) -> None:
        """The pipeline first: what it still does, it does with the gateways' Registrars. A second Ctrl-C ends at once."""
        for watch in self._watches.values():
            watch.stop()
        self._pipeline.end(STOP_GRACE_S, hurry=self.hurry)
        for gateway in self._watches:
            gateway.ask_to_end()  # all of them together, and then one after the other, until one time for all
        deadline = time.monotonic() + STOP_GRACE_S
        for gateway in self._watches:
            gateway.end(max(0.0, deadline - time.monotonic()), hurry=self.hurry)
