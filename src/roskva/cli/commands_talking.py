"""The commands that talk to a service: `publish`, `watch`, `invalidate`, `reset`, `status`, `latency`, `inspect`, `dead-letters`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, Final

from roskva.cli.options import DATA_FOR_KEY, SEEN_BY_OTHERS, add_command, add_url, positive
from roskva.errors import BadRequest


def add_talking(commands: Any) -> None:
    publish = add_command(commands, "publish", _publish, "tell of a new version of an object", _PUBLISH_MORE)
    publish.add_argument("object", metavar="APPLICATION/NAME", help="or - to read JSON lines from standard input")
    publish.add_argument("version", metavar="VERSION", nargs="?", help="0 to 9223372036854775807, larger than those before it")
    publish.add_argument("--source", metavar="DEVICE", default="", help="the device that made the change; it is not notified")
    watch = add_command(commands, "watch", _watch, "register for objects and print notifications as they come", _WATCH_MORE)
    watch.add_argument("objects", metavar="APPLICATION/NAME", nargs="+")
    watch.add_argument("--state", metavar="FILE", type=Path, help="keep the client's state there, and go on with it at the next start")
    credential = (
        "whose client it is: a credential, or @FILE with one that is read whenever one is asked for (default: ROSKVA_CREDENTIAL); "
        + SEEN_BY_OTHERS
    )
    watch.add_argument("--credential", metavar="TEXT|@FILE", default=os.environ.get("ROSKVA_CREDENTIAL", ""), help=credential)
    watch.add_argument("--count", metavar="N", type=positive(int), help="end after so many notifications")
    watch.add_argument("--timeout", metavar="SECONDS", type=positive(float), help="end, with status 1, after so long")
    invalidate = add_command(commands, "invalidate", _invalidate, "let everyone registered for objects fetch them anew", _INVALIDATE_MORE)
    invalidate.add_argument("what", metavar="APPLICATION[/NAME or /PREFIX*]")
    invalidate.add_argument("--no-wait", dest="wait", action="store_false", help="end when it is accepted, not when everyone is told")
    invalidate.add_argument("--timeout", metavar="SECONDS", type=positive(float), default=3600.0, help="wait so long (default: 3600)")
    for parser in (publish, invalidate):
        key = "a publish key of the application, or @FILE with one (default: ROSKVA_PUBLISH_KEY; without one, as an operator); "
        parser.add_argument("--key", metavar="KEY|@FILE", default=os.environ.get("ROSKVA_PUBLISH_KEY", ""), help=key + SEEN_BY_OTHERS)
    reset = add_command(commands, "reset", _reset, "let an application's versions begin anew, lower ones included", _RESET_MORE)
    reset.add_argument("application", metavar="APPLICATION")
    status = add_command(commands, "status", _status, "show who is connected, and how the pipeline does", _STATUS_MORE)
    times = add_command(
        commands, "latency", _latency, "show how long updates take to reach clients, and where the time goes", _LATENCY_MORE
    )
    watch_help = "show it again every so many seconds (default: 2), of what came since the command began, until Ctrl-C"
    times.add_argument("--watch", metavar="SECONDS", type=positive(float), nargs="?", const=2.0, help=watch_help)
    look = add_command(commands, "inspect", _inspect, "look at one client or one object", _INSPECT_MORE)
    look.add_argument("what", choices=("client", "object"))
    look.add_argument("name", metavar="NAME", help="the client's id, or APPLICATION/NAME of the object")
    look.add_argument("--limit", metavar="N", type=positive(int), default=100, help="list at most so many of each (default: 100)")
    letters = add_command(commands, "dead-letters", _dead_letters, "print the updates that could not be understood", _LETTERS_MORE)
    letters.add_argument("--follow", action="store_true", help="go on and print new ones as they come")
    letters.add_argument("--limit", metavar="N", type=positive(int), default=1_000, help="at most so many (default: 1000)")
    for parser in (publish, status, times, look, letters, invalidate, reset):
        parser.add_argument("--data", metavar="DIR", help=DATA_FOR_KEY)
    for parser in (publish, watch, status, times, look, letters, invalidate, reset):
        add_url(parser)


def _publish(arguments: argparse.Namespace) -> int:
    from roskva.cli.talk import publish

    if (arguments.object == "-") != (arguments.version is None):
        raise BadRequest("publish takes APPLICATION/NAME and VERSION, or - alone.")
    return publish(arguments)


def _watch(arguments: argparse.Namespace) -> int:
    from roskva.cli.talk import watch

    return watch(arguments)


def _invalidate(arguments: argparse.Namespace) -> int:
    from roskva.cli.order import invalidate

    return invalidate(arguments)


def _reset(arguments: argparse.Namespace) -> int:
    from roskva.cli.order import reset

    return reset(arguments)


def _status(arguments: argparse.Namespace) -> int:
    from roskva.cli.status import status

    return status(arguments)


def _latency(arguments: argparse.Namespace) -> int:
    from roskva.cli.latency import latency

    return latency(arguments)


def _inspect(arguments: argparse.Namespace) -> int:
    from roskva.cli.inspect import inspect

    return inspect(arguments)


def _dead_letters(arguments: argparse.Namespace) -> int:
    from roskva.cli.status import dead_letters

    return dead_letters(arguments)


_PUBLISH_MORE: Final = """\
Returns when the update is durable. Repeating it is harmless. With - it reads one JSON object a line from standard input:
  {"object": "demo/hello", "version": 7, "source": "phone-1"}
and prints a line on stderr for each that is refused; the rest goes through.

examples:
  roskva publish demo/hello 7
  roskva publish demo/hello 8 --source phone-1
  roskva publish - < updates.jsonl"""

_WATCH_MORE: Final = """\
Prints the object and its version, or "unknown": then fetch the object whatever you hold. Each notification is acknowledged when
it was printed. Without --state it is a new client at every start, and is told the latest version of everything once.

examples:
  roskva watch demo/hello demo/world
  roskva watch demo/hello --state me.state --json
  roskva watch demo/hello --count 1 --timeout 60"""

_INVALIDATE_MORE: Final = """\
They are told "unknown": for when what they hold may be wrong and no new version says so. A * at the end stands for whatever
follows; a name that ends in one itself is written base64: and base64url. Waits until the service has gone through all of them.

examples:
  roskva invalidate demo/hello
  roskva invalidate 'demo/user/17/*'
  roskva invalidate demo --no-wait"""

_RESET_MORE: Final = """\
For when versions went back: a backend was restored from a backup, or counts anew. Raises the application's epoch: what is published
from now on counts, however low, and everyone registered is told "unknown". First stop whatever still publishes the old versions.

examples:
  roskva reset demo"""

_STATUS_MORE: Final = """\
examples:
  roskva status
  roskva status --json --url http://gateway-1:8470"""

_LATENCY_MORE: Final = """\
Of updates that the service samples (setting stamps_per_s), over all gateways that answer: from the receipt to the first attempt to send,
and apart from it to the client's acknowledgement, by the fast path and through the pipeline; then what each hop adds. A value is known to
a sixteenth. Without --watch it is of all since the gateways started.

examples:
  roskva latency
  roskva latency --watch
  roskva latency --json --url http://gateway-1:8470"""

_INSPECT_MORE: Final = """\
A client: its session, whether it is online, what it registered, what is on its way, and what it has not acknowledged, since when.
The gateway that owns it says so; the answer says which that is. An object: its version, and who has not acknowledged
it. An id that begins with - is written after --.

examples:
  roskva inspect object demo/hello
  roskva inspect client 3vJb0mDkQ2uZ --json"""

_LETTERS_MORE: Final = """\
An update that is not of its application's form is kept here, with the reason and where it came from.

examples:
  roskva dead-letters
  roskva dead-letters --follow --json"""
