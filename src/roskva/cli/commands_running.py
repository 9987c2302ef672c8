"""The commands that run the service or work on its data directory: `up`, `gateway`, `pipeline`, `doctor`, `drop`, `sweep`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import Any, Final

from roskva.cli.options import add_command
from roskva.cli.settings import settings_from, sources_of
from roskva.config import FILE_NAME, Settings

SWEEPS: Final = ("collect", "zombies", "purge", "objects", "scratch", "compare", "repair")
LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def add_running(commands: Any) -> None:
    up = add_command(commands, "up", _up, "run the whole service on this machine until Ctrl-C", _UP_MORE)
    up.add_argument("--open", action="store_true", help="open the demo page in a browser when the service is ready")
    gateways = "gateways on the public port (default: one for every two cores, at least one, at most one for each partition)"
    up.add_argument("--gateways", metavar="N", help=gateways)
    gateway = add_command(commands, "gateway", _gateway, "run one gateway: the port for clients and publishers", _PART_MORE)
    name = "how it is called in status and metrics; of two with one name the second is refused (default: an id of its own)"
    gateway.add_argument("--name", dest="gateway_name", metavar="NAME", help=name)
    gateway.add_argument("--share-port", action="store_true", help="listen beside other gateways on the same data directory")
    pipeline = add_command(commands, "pipeline", _pipeline, "run the pipeline: the Spark queries from feed to Registrars", _PART_MORE)
    doctor = add_command(commands, "doctor", _doctor, "check this machine and say how to fix what is wrong", _DOCTOR_MORE)
    doctor.add_argument("--json", action="store_true", help="print a list of checks as JSON")
    drop = add_command(commands, "drop", _drop, "begin a part of the data directory, or all of it, anew", _DROP_MORE)
    drop.add_argument("what", choices=("registrar", "matcher", "scratch", "feed", "all"), help="what goes")
    drop.add_argument("--yes", action="store_true", help="do not ask")
    sweep = add_command(commands, "sweep", _sweep, "run one of the sweeps now, beside the service or without it", _SWEEP_MORE)
    sweep.add_argument("sweep", choices=SWEEPS, metavar="SWEEP", help=f"one of {', '.join(SWEEPS)}")
    sweep.add_argument("--dry-run", action="store_true", help="look and count, and change nothing")
    sweep.add_argument("--json", action="store_true", help="print a JSON object, and no progress")
    for parser in (up, gateway, pipeline, doctor, drop, sweep):
        parser.add_argument("--data", metavar="DIR", help="data directory (default: roskva-data)")
        if parser not in (pipeline, drop, sweep):
            listen = "the public port (default: 127.0.0.1:8470; port 0 picks a free one)"
            parser.add_argument("--listen", metavar="HOST:PORT", help=listen)
        if parser in (up, gateway):
            insecure = "serve other machines although applications ask nobody who they are; for closed networks only"
            parser.add_argument("--insecure", action="store_true", help=insecure)
        parser.add_argument("--config", metavar="FILE", type=Path, help=f"settings file (default: {FILE_NAME}, if it is there)")
        parser.add_argument(
            "--set", metavar="NAME=VALUE", action="append", default=[], help="any setting of docs/settings.md; may be repeated"
        )


def _up(arguments: argparse.Namespace) -> int:
    settings = settings_from(arguments)
    _check_exposure(settings)
    from roskva.cli.up import up

    return up(settings, arguments)


def _check_exposure(settings: Settings) -> None:
    from roskva.gateway.exposure import check_exposure

    for warning in check_exposure(settings):
        print(f"roskva: warning: {warning}", file=sys.stderr, flush=True)


def _gateway(arguments: argparse.Namespace) -> int:
    settings = _begin(arguments)
    _check_exposure(settings)
    from roskva.cli.gateways import MEMBER
    from roskva.gateway.service import run

    return run(settings, sources_of(arguments), os.environ.get(MEMBER, ""))


def _pipeline(arguments: argparse.Namespace) -> int:
    settings = _begin(arguments)
    from roskva.pipeline.query import run

    return run(settings)


def _begin(arguments: argparse.Namespace) -> Settings:
    """What gateway and pipeline do first: settings, log, and not to outlive the `up` that started them."""
    from roskva.cli.processes import end_with_parent

    settings = settings_from(arguments)
    logging.basicConfig(level=settings.log_level.upper(), format=LOG_FORMAT, stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of every connection that it closes
    end_with_parent(os.environ)
    return settings


def _doctor(arguments: argparse.Namespace) -> int:
    from roskva.cli.doctor import doctor

    return doctor(settings_from(arguments), as_json=arguments.json)


def _drop(arguments: argparse.Namespace) -> int:
    from roskva.cli.drop import drop

    return drop(settings_from(arguments), arguments)


def _sweep(arguments: argparse.Namespace) -> int:
    settings = settings_from(arguments)
    from roskva.cli.sweep import sweep

    return sweep(settings, arguments)


_UP_MORE: Final = """\
Starts gateways, which share the public port, and the pipeline, shows each step with its time, and then the address of the demo page.
What dies or stops making progress is started again. Logs are in DIR/log. One `up` per data directory.

examples:
  roskva up
  roskva up --data /var/lib/roskva --listen 10.0.0.7:8470    (refused while applications are open to anybody)
  roskva up --gateways 4 --set pipeline_cores=4 --open"""

_PART_MORE: Final = """\
`roskva up` runs both parts together; run them one by one under a supervisor of your own. SIGTERM stops it cleanly.

examples:
  roskva gateway --data /var/lib/roskva --listen 127.0.0.1:8471
  roskva gateway --data /var/lib/roskva --listen 127.0.0.1:8471 --share-port --name second
  roskva pipeline --data /var/lib/roskva"""

_DOCTOR_MORE: Final = """\
Each check is ok, warn or fail, with what to do. The exit status is 1 if any failed.

examples:
  roskva doctor
  roskva doctor --data /var/lib/roskva --json"""

_DROP_MORE: Final = """\
Says what it costs and asks first. The service may run or not; settings and keys stay. No update is lost for anybody: whoever was
registered is told again, or told "unknown". Also the way from the data directory of an earlier version: there is no migration.

examples:
  roskva drop matcher
  roskva drop all --data /var/lib/roskva --yes"""

_SWEEP_MORE: Final = """\
  collect    clients that were not seen for client_retention_days; then zombies
  zombies    rows of collected or lost clients, and the Matcher's copies of what they registered
  purge      closed cells that nothing can replay any more
  objects    objects that nobody registers and nobody updated for object_retention_days
  scratch    bring home what could not be written where it belongs
  compare    the two views of all registrations: register anew what the Matcher lacks, drop its copies of what is gone
  repair     register anew what lost partitions held

The service runs them on schedule; see docs/sweeps.md. One that is interrupted is harmless: the next one does the rest. The exit
status is 1 if it failed, or had to leave something for the next time.

examples:
  roskva sweep collect --dry-run
  roskva sweep compare --data /var/lib/roskva --json"""
