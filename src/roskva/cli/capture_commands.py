"""The command `capture`, which reads a database's log, and what an operator says to it while it runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from roskva.cli.options import add_command

DATASTORES: Final = ("postgres", "mariadb", "mysql", "rocksdb", "files")
_FLOW: Final = "APPLICATION for all its shards, or APPLICATION/SHARD"


def add_capture(commands: Any) -> None:
    capture = add_command(commands, "capture", _of("run", "capture"), "read a database's log, and publish what changes", _MORE)
    parts = capture.add_subparsers(title="what to do instead", metavar="WHAT")
    check = add_command(parts, "check", _of("check", "check"), "try the settings against the live database, and explain", _CHECK_MORE)
    status = add_command(parts, "status", _of("status", "status"), "show flows, lag, caravans and rates, the worst first", _STATUS_MORE)
    status.add_argument("--all", action="store_true", help="every flow, not only the worst ones")
    flows = add_command(parts, "flows", _of("status", "flows"), "list the flows of a publisher that runs", _FLOWS_MORE)
    flows.add_argument("application", metavar="APPLICATION", nargs="?", help="of this application alone")
    pause = add_command(parts, "pause", _of("control", "pause"), "send nothing more of a flow, until it is resumed", _PAUSE_MORE)
    pause.add_argument("--why", metavar="TEXT", help="what status says of it")
    resume = add_command(parts, "resume", _of("control", "resume"), "send a paused flow again", _PAUSE_MORE)
    rewind = add_command(parts, "rewind", _of("control", "rewind"), "set how far a flow has come, back or forward", _REWIND_MORE)
    reassign = add_command(parts, "reassign", _of("control", "reassign"), "give a flow to another process", _REASSIGN_MORE)
    for parser in (pause, resume, rewind, reassign):
        parser.add_argument("flow", metavar="FLOW", help=_FLOW)
    rewind.add_argument("to", metavar="PLACE", help="oldest, end, a position such as 1/4711, or a time such as 2026-01-31T12:00:00Z")
    reassign.add_argument("--to", metavar="PROCESS", help="this one, by its name in status (default: any other)")
    reassign.add_argument("--back", action="store_true", help="no longer so: flows are spread evenly again")
    move = add_command(
        parts, "move", _of("control", "move"), "let another publisher of the same data have an application's flows", _MOVE_MORE
    )
    move.add_argument("application", metavar="APPLICATION")
    move.add_argument("publisher", metavar="PUBLISHER", nargs="?", default="", help="the one that shall have them, while it lives")
    move.add_argument("--back", action="store_true", help="to the order of the settings")
    remove = add_command(parts, "remove", _of("control", "remove"), "forget the flows of an application that is gone", _REMOVE_MORE)
    remove.add_argument("application", metavar="APPLICATION")
    for parser in (rewind, remove):
        parser.add_argument("--yes", action="store_true", help="do not ask")
    limits = add_command(parts, "set", _of("control", "set_limits"), "change rates and limits of a publisher that runs", _SET_MORE)
    limits.add_argument("pairs", metavar="NAME=VALUE", nargs="+")
    example = add_command(parts, "example", _example, "print a settings file to begin with", _EXAMPLE_MORE)
    example.add_argument("kind", choices=DATASTORES, nargs="?", default="postgres", help="the datastore (default: postgres)")
    publisher = add_command(parts, "publisher", _of("run", "publisher"), "run the part alone that reads the log", _PART_MORE)
    notifier = add_command(parts, "notifier", _of("run", "notifier"), "run the part alone that publishes versions", _PART_MORE)
    running = (status, flows, pause, resume, rewind, reassign, move, remove, limits)
    config = "settings file (default: ROSKVA_CAPTURE_CONFIG, or capture.toml)"
    # What stands before the command counts, unless it stands after it as well: hence no default there.
    for parser in (capture, check, *running, publisher, notifier):
        parser.add_argument("--config", metavar="FILE", type=Path, default=None if parser is capture else argparse.SUPPRESS, help=config)
    for parser in (capture, publisher):
        default = None if parser is capture else argparse.SUPPRESS
        metrics = "serve figures for Prometheus there (default: nowhere)"
        parser.add_argument("--metrics", metavar="HOST:PORT", default=default, help=metrics)
        datamarkers = "where datamarkers are kept, instead of publisher.datamarkers: a file, or a PostgreSQL server"
        parser.add_argument("--datamarkers", metavar="PLACE", default=default, help=datamarkers)
    for parser in running:
        parser.add_argument("--data", metavar="DIR", help="the publisher's data directory, instead of the settings file")
    for parser in (check, *running):
        parser.add_argument("--json", action="store_true", help="print JSON")


def _of(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    def act(arguments: argparse.Namespace) -> int:
        status: int = getattr(import_module(f"roskva.cli.capture_{module}"), name)(arguments)
        return status

    return act


def _example(arguments: argparse.Namespace) -> int:
    from roskva.capture.settings import example

    print(example(arguments.kind), end="")
    return 0


_MORE: Final = """\
Runs until Ctrl-C or SIGTERM: reads the log that the settings name, serves whoever subscribes, and, with [roskva] in the settings, publishes
a version of an object for each change of its row. Makes publication and slot, if they are not there; drops nothing. What dies is started
again. docs/capture.md tells all of it.

examples:
  roskva capture example > capture.toml        then say which database, and which rows are which objects
  roskva capture check                         is the database ready for it?
  roskva capture                               run it
  roskva capture status                        how far everybody is"""

_CHECK_MORE: Final = """\
Looks at settings, permissions, wal_level, replica identities, publication, slot, retained log, disk, the mapping and the service, and
changes nothing. Each point is ok, FAIL with what to do, or soon: `roskva capture` makes it. The exit status is 1 if any failed.

examples:
  roskva capture check
  roskva capture check --config /etc/roskva/capture.toml --json"""

_STATUS_MORE: Final = """\
Lag is told in bytes of log, in seconds, and as a share of what the datastore keeps: from 50 % on a warning, from 80 % on an alarm. The exit
status is 1 if something does not work, or at an alarm.

examples:
  roskva capture status
  roskva capture status --data /var/lib/roskva-capture --json"""

_FLOWS_MORE: Final = """\
A flow is all changes of one shard on their way to one application.

examples:
  roskva capture flows
  roskva capture flows search --json"""

_PAUSE_MORE: Final = """\
A pause outlives restarts, and holds at every publisher of the same data. The log is kept for the flow meanwhile.

examples:
  roskva capture pause search --why "the index is rebuilt"
  roskva capture resume search
  roskva capture pause search/3"""

_REWIND_MORE: Final = """\
What comes after the place comes again, or, if it lies ahead, what is before it is skipped for good: then it asks first. A place beyond the
log's end is refused. Positions are of the form that status shows.

examples:
  roskva capture rewind search oldest
  roskva capture rewind search/3 1/4711
  roskva capture rewind search 2026-01-31T12:00:00Z"""

_REASSIGN_MORE: Final = """\
The process finishes what it has begun; the other one goes on from the datamarker. With balance = "coordinated" the flow stays there, and
others make up for it, until that process is gone or gives it back (a callback raised), another publisher has the flow, or --back. With
"weighted" it stays until its process is overloaded; with a function of your own, until that says otherwise.

examples:
  roskva capture reassign search/3
  roskva capture reassign search/3 --to worker-2:4711
  roskva capture reassign search --back"""

_MOVE_MORE: Final = """\
For publishers of the same data (publisher.peers). Flows go over without a gap, and stay there, also over restarts, until --back.

examples:
  roskva capture move search db2
  roskva capture move search --back"""

_REMOVE_MORE: Final = """\
First take [applications.NAME] out of the settings and restart. The log is kept for an application until it is removed: nothing is dropped
without being told.

examples:
  roskva capture remove search"""

_SET_MORE: Final = """\
Counts at once, and until the next restart: write it into the settings file, too. Names are those of the limits (caravans_max,
caravan_rate_max, caravans_rate_total_max, policy, datamarker_period_s, buffer_bytes_max ...), memory_mib_max and connections_max; the
answer is all of them. Who is connected stays so, and flows keep the windows that they have.

examples:
  roskva capture set caravan_rate_max="8 MiB"
  roskva capture set caravans_max=2 datamarker_period_s=10"""

_EXAMPLE_MORE: Final = """\
Every setting is in it, with its default and when to change it.

examples:
  roskva capture example > capture.toml
  roskva capture example mariadb"""

_PART_MORE: Final = """\
`roskva capture` runs both parts together; run them one by one under a supervisor of your own. SIGTERM stops it cleanly; the exit status is
2 if no restart will help.

examples:
  roskva capture publisher --config /etc/roskva/capture.toml --metrics 127.0.0.1:9480
  roskva capture notifier --config /etc/roskva/capture.toml"""
