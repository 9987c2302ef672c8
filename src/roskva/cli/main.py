"""The commands, their options and help, and how errors look: one line on stderr, no traceback; 0 done, 1 failed, 2 misused.

Commands are imported when they run, so that `roskva --help` is quick and a machine without the server's packages can publish. It is long:
one place shows all commands.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NoReturn

from roskva.cli.settings import settings_from, sources_of
from roskva.config import FILE_NAME, Settings
from roskva.errors import BadRequest, InvalidSetting, RoskvaError

DEFAULT_URL: Final = "http://127.0.0.1:8470"
SWEEPS: Final = ("collect", "zombies", "purge", "objects", "scratch", "compare", "repair")
_SEEN_BY_OTHERS: Final = "what stands on a command line other users of this machine can read: use the variable or a file"
_DATA_FOR_KEY: Final = "the service's data directory, for the key of operators (default: as `up` has it)"
LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_DESCRIPTION: Final = """\
Roskva keeps caches fresh: clients register for objects, backends publish new versions, and every registered client always
eventually learns the latest one."""

_EXAMPLES: Final = """\
examples:
  roskva up                               start the service here; Ctrl-C stops it
  roskva watch demo/hello                 print what clients of demo/hello are told
  roskva publish demo/hello 7             tell them of version 7
  roskva status                           who is connected, and how far behind the pipeline is
  roskva doctor                           check this machine, and say how to fix what is wrong

`roskva COMMAND --help` says more. Objects are written APPLICATION/NAME; a name that is not printable text is written
base64: and base64url. Settings: docs/settings.md. Errors: docs/errors.md."""


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of `roskva`; answers the exit status."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        status: int = arguments.action(arguments)
    except InvalidSetting as error:
        print(f"roskva: {error}", file=sys.stderr)
        return 2
    except RoskvaError as error:
        print(f"roskva: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(
            f"roskva: {error.name} is not installed. Install what this command needs: pip install 'roskva[server]'",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        return 1
    except BrokenPipeError:
        # Whoever read our output has gone, as in `roskva watch ... | head`. Python would complain once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


class _Parser(argparse.ArgumentParser):
    """Like argparse's, but errors say where to read on."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}. See: {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="roskva", description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"roskva {version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_service_commands(commands)
    _add_talking_commands(commands)
    _add_app(commands)
    _add_user(commands)
    _add_conformance(commands)
    _add_simulate(commands)
    _add_load(commands)
    return parser


def version() -> str:
    try:
        return metadata.version("roskva")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _add(commands: Any, name: str, action: Callable[[argparse.Namespace], int], summary: str, more: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(action=action)
    return parser


def _add_service_commands(commands: Any) -> None:
    up = _add(commands, "up", _up, "run the whole service on this machine until Ctrl-C", _UP_MORE)
    up.add_argument("--open", action="store_true", help="open the demo page in a browser when the service is ready")
    gateways = "gateways on the public port (default: one for every two cores, at least one)"
    up.add_argument("--gateways", metavar="N", help=gateways)
    gateway = _add(commands, "gateway", _gateway, "run one gateway: the port for clients and publishers", _PART_MORE)
    name = "how it is called in status and metrics; of two with one name the second is refused (default: an id of its own)"
    gateway.add_argument("--name", dest="gateway_name", metavar="NAME", help=name)
    gateway.add_argument("--share-port", action="store_true", help="listen beside other gateways on the same data directory")
    pipeline = _add(commands, "pipeline", _pipeline, "run the pipeline: the Spark queries from feed to Registrars", _PART_MORE)
    doctor = _add(commands, "doctor", _doctor, "check this machine and say how to fix what is wrong", _DOCTOR_MORE)
    doctor.add_argument("--json", action="store_true", help="print a list of checks as JSON")
    drop = _add(commands, "drop", _drop, "begin a part of the data directory, or all of it, anew", _DROP_MORE)
    drop.add_argument("what", choices=("registrar", "matcher", "scratch", "feed", "all"), help="what goes")
    drop.add_argument("--yes", action="store_true", help="do not ask")
    sweep = _add(commands, "sweep", _sweep, "run one of the sweeps now, beside the service or without it", _SWEEP_MORE)
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


def _add_talking_commands(commands: Any) -> None:
    publish = _add(commands, "publish", _publish, "tell of a new version of an object", _PUBLISH_MORE)
    publish.add_argument("object", metavar="APPLICATION/NAME", help="or - to read JSON lines from standard input")
    publish.add_argument("version", metavar="VERSION", nargs="?", help="0 to 9223372036854775807, larger than those before it")
    publish.add_argument("--source", metavar="DEVICE", default="", help="the device that made the change; it is not notified")
    watch = _add(commands, "watch", _watch, "register for objects and print notifications as they come", _WATCH_MORE)
    watch.add_argument("objects", metavar="APPLICATION/NAME", nargs="+")
    watch.add_argument("--state", metavar="FILE", type=Path, help="keep the client's state there, and go on with it at the next start")
    credential = (
        "whose client it is: a credential, or @FILE with one that is read whenever one is asked for (default: ROSKVA_CREDENTIAL); "
        + _SEEN_BY_OTHERS
    )
    watch.add_argument("--credential", metavar="TEXT|@FILE", default=os.environ.get("ROSKVA_CREDENTIAL", ""), help=credential)
    watch.add_argument("--count", metavar="N", type=_positive(int), help="end after so many notifications")
    watch.add_argument("--timeout", metavar="SECONDS", type=_positive(float), help="end, with status 1, after so long")
    invalidate = _add(commands, "invalidate", _invalidate, "let everyone registered for objects fetch them anew", _INVALIDATE_MORE)
    invalidate.add_argument("what", metavar="APPLICATION[/NAME or /PREFIX*]")
    invalidate.add_argument("--no-wait", dest="wait", action="store_false", help="end when it is accepted, not when everyone is told")
    invalidate.add_argument("--timeout", metavar="SECONDS", type=_positive(float), default=3600.0, help="wait so long (default: 3600)")
    for parser in (publish, invalidate):
        key = "a publish key of the application, or @FILE with one (default: ROSKVA_PUBLISH_KEY; without one, as an operator); "
        parser.add_argument("--key", metavar="KEY|@FILE", default=os.environ.get("ROSKVA_PUBLISH_KEY", ""), help=key + _SEEN_BY_OTHERS)
    reset = _add(commands, "reset", _reset, "let an application's versions begin anew, lower ones included", _RESET_MORE)
    reset.add_argument("application", metavar="APPLICATION")
    status = _add(commands, "status", _status, "show who is connected, and how the pipeline does", _STATUS_MORE)
    times = _add(commands, "latency", _latency, "show how long updates take to reach clients, and where the time goes", _LATENCY_MORE)
    watch_help = "show it again every so many seconds (default: 2), of what came since the command began, until Ctrl-C"
    times.add_argument("--watch", metavar="SECONDS", type=_positive(float), nargs="?", const=2.0, help=watch_help)
    look = _add(commands, "inspect", _inspect, "look at one client or one object", _INSPECT_MORE)
    look.add_argument("what", choices=("client", "object"))
    look.add_argument("name", metavar="NAME", help="the client's id, or APPLICATION/NAME of the object")
    look.add_argument("--limit", metavar="N", type=_positive(int), default=100, help="list at most so many of each (default: 100)")
    letters = _add(commands, "dead-letters", _dead_letters, "print the updates that could not be understood", _LETTERS_MORE)
    letters.add_argument("--follow", action="store_true", help="go on and print new ones as they come")
    letters.add_argument("--limit", metavar="N", type=_positive(int), default=1_000, help="at most so many (default: 1000)")
    for parser in (publish, status, times, look, letters, invalidate, reset):
        parser.add_argument("--data", metavar="DIR", help=_DATA_FOR_KEY)
    for parser in (publish, watch, status, times, look, letters, invalidate, reset):
        _add_url(parser)


def _add_app(commands: Any) -> None:
    app = commands.add_parser(
        "app",
        help="make applications and their publish keys, in the settings file",
        description="Make applications and their publish keys, in the settings file.",
        epilog=_APP_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = app.add_subparsers(metavar="WHAT", required=True)
    listing = _add(parts, "list", _of_apps("list_apps"), "show the applications", "")
    listing.add_argument("--json", action="store_true", help="print JSON, one object a line")
    create = _add(parts, "create", _of_apps("create"), "make an application with a publish key, which is shown once", "")
    create.add_argument("name", metavar="NAME")
    create.add_argument("--auth", choices=("jwt", "webhook", "none"), help="how its clients say who their user is")
    create.add_argument("--jwt-keys", metavar="FILE|URL", help="what JSON Web Tokens are verified with")
    create.add_argument("--webhook", metavar="URL", help="what is asked whose a credential is")
    create.add_argument("--origin", metavar="ORIGIN", action="append", default=[], help="a page of which may call; may be repeated")
    key = parts.add_parser("key", help="add, list or remove publish keys", description="Add, list or remove publish keys.")
    keys = key.add_subparsers(metavar="WHAT", required=True)
    add = _add(keys, "add", _of_apps("add_key"), "make another publish key, which is shown once", "")
    shown = _add(keys, "list", _of_apps("list_keys"), "show how the hashes of the keys begin", "")
    remove = _add(keys, "remove", _of_apps("remove_key"), "let a key count no more", "")
    for parser in (add, shown, remove):
        parser.add_argument("name", metavar="NAME", help="the application")
    remove.add_argument("prefix", metavar="PREFIX", help="how its hash begins")
    remove.add_argument("--force", action="store_true", help="the last one, too: then anybody may publish")
    for parser in (listing, create, add, shown, remove):
        parser.add_argument("--config", metavar="FILE", type=Path, help=f"settings file (default: {FILE_NAME})")


def _add_user(commands: Any) -> None:
    user = commands.add_parser(
        "user",
        help="revoke a user's credentials, look at its clients, or erase them",
        description="Revoke a user's credentials, look at its clients, or erase them.",
        epilog=_USER_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = user.add_subparsers(metavar="WHAT", required=True)
    revoke = _add(parts, "revoke", _of_users("revoke"), "let credentials that were issued until now count no more", "")
    clients = _add(parts, "clients", _of_users("clients"), "show the user's clients; looks at all clients' rows", "")
    erase = _add(parts, "erase", _of_users("erase"), "collect the user's clients, online or not; looks at all clients' rows", "")
    erase.add_argument("--yes", action="store_true", help="do not ask")
    for parser in (revoke, clients, erase):
        parser.add_argument("application", metavar="APPLICATION")
        parser.add_argument("user", metavar="USER", help="as credentials name it: `sub` of a JSON Web Token")
        parser.add_argument("--config", metavar="FILE", type=Path, help=f"settings file (default: {FILE_NAME})")
    for parser in (clients, erase):
        parser.add_argument("--data", metavar="DIR", help=_DATA_FOR_KEY)
        _add_url(parser)


def _add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")
    parser.add_argument(
        "--url",
        metavar="URL",
        default=os.environ.get("ROSKVA_URL", DEFAULT_URL),
        help=f"the service (default: ROSKVA_URL, or {DEFAULT_URL})",
    )


def _add_conformance(commands: Any) -> None:
    check = _add(commands, "conformance", _conformance, "check a server or a client of somebody else by transcripts", _CONFORMANCE_MORE)
    check.add_argument("url", metavar="URL", nargs="?", help="the server to check")
    check.add_argument("--serve", metavar="PORT", type=int, help="play the server there, and check the client that comes (0 picks a port)")
    check.add_argument("--list", action="store_true", help="print the transcripts, and end")
    check.add_argument("--only", metavar="NAME", action="append", default=[], help="those whose name begins so; may be repeated")
    check.add_argument("--channel", choices=("websocket", "longpoll"), default="websocket", help="to a server (default: websocket)")
    check.add_argument("--application", metavar="NAME", default="demo", help="that the server knows (default: demo)")
    key = f"a publish key of it, or @FILE with one, if the server asks for one (default: ROSKVA_PUBLISH_KEY); {_SEEN_BY_OTHERS}"
    check.add_argument("--key", metavar="KEY|@FILE", default=os.environ.get("ROSKVA_PUBLISH_KEY", ""), help=key)
    check.add_argument("--patience", metavar="SECONDS", type=_positive(float), default=10.0, help="for each answer (default: 10)")
    check.add_argument("--slow", action="store_true", help="also those in which minutes pass")
    check.add_argument("--json", action="store_true", help="print JSON, one object a line")


def _add_simulate(commands: Any) -> None:
    simulate = _add(commands, "simulate", _simulate, "run simulated worlds that try to break the promise", _SIMULATE_MORE)
    simulate.add_argument("--seeds", metavar="A-B", default="1-200", help="a world for each (default: 1-200)")
    simulate.add_argument("--minutes", metavar="M", type=_positive(float), help="go on from seed A for so long")
    simulate.add_argument("--processes", metavar="N", type=_positive(int), help="worlds at once (default: one per core)")
    simulate.add_argument("--seed", metavar="N", type=int, help="one world, with all that its seed stands for")
    simulate.add_argument("--trace", action="store_true", help="with --seed: print what happened, a line for each event")
    simulate.add_argument("--minimize", action="store_true", help="with --seed: the smallest world that still fails in the same way")
    simulate.add_argument("--json", action="store_true", help="print a JSON object")


def _add_load(commands: Any) -> None:
    load = _add(commands, "load", _load, "simulate many clients and publishes against a service of your own", _LOAD_MORE)
    number, seconds = _positive(int), _positive(float)
    load.add_argument("--clients", metavar="N", type=number, default=1_000, help="simulated clients (default: 1000)")
    load.add_argument("--registrations", metavar="N", type=number, default=5, help="of each client, up to 256 (default: 5)")
    load.add_argument("--objects", metavar="N", type=number, help="objects in all (default: one for each registration)")
    load.add_argument("--fan-out", metavar="N", type=number, help="or: clients for each object (default: 1)")
    load.add_argument(
        "--arrivals-per-s", metavar="N", type=seconds, default=1_000.0, help="clients that arrive in a second (default: 1000)"
    )
    load.add_argument("--heartbeat-s", metavar="S", type=seconds, help="of each silent client (default: as the service wishes)")
    load.add_argument("--update-every-s", metavar="S", type=seconds, help="each client in sync has one of its objects published so often")
    load.add_argument("--rate", metavar="N", type=seconds, help="or: publishes a second, from when all clients are in sync")
    load.add_argument("--batch", metavar="N", type=number, default=1, help="updates in one publish request (default: 1)")
    load.add_argument("--seconds", metavar="S", type=seconds, help="end so long after all clients are in sync (default: at Ctrl-C)")
    load.add_argument("--lines", metavar="N", type=number, default=4, help="trusted connections of each process (default: 4)")
    load.add_argument("--processes", metavar="N", type=number, default=1, help="that simulate clients, a part each (default: 1)")
    load.add_argument("--drop", metavar="PART", type=float, default=0.0, help="part of the messages that is lost, either way: 0.01 is 1 %%")
    load.add_argument("--state", metavar="FILE", type=Path, help="keep the clients' tokens there, and return with the same ids")
    load.add_argument("--resume", action="store_true", help="with --state: go on with the kept sessions, as after a broken connection")
    load.add_argument("--application", metavar="NAME", default="demo", help="whose clients they are (default: demo)")
    load.add_argument("--prefix", metavar="TEXT", default="load", help="begins the names of objects and devices (default: load)")
    key = "the key `trusted` of the service's keys.json, or @FILE with it (default: ROSKVA_TRUSTED_KEY, or that of --data); "
    load.add_argument("--key", metavar="KEY|@FILE", default=os.environ.get("ROSKVA_TRUSTED_KEY", ""), help=key + _SEEN_BY_OTHERS)
    load.add_argument(
        "--publish-key",
        metavar="KEY|@FILE",
        default=os.environ.get("ROSKVA_PUBLISH_KEY", ""),
        help="a publish key of the application, if it has any (default: ROSKVA_PUBLISH_KEY)",
    )
    load.add_argument("--data", metavar="DIR", help="the service's data directory, for the key (default: as `up` has it)")
    _add_url(load)


def _positive(kind: type[int | float]) -> Callable[[str], float]:
    def convert(text: str) -> float:
        value = kind(text)
        if not 0 < value < 1e9:
            raise argparse.ArgumentTypeError(f"{text} is not greater than 0")
        return value

    convert.__name__ = "number"  # argparse: invalid number value: 'x'
    return convert


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


def _of_apps(name: str) -> Callable[[argparse.Namespace], int]:
    def act(arguments: argparse.Namespace) -> int:
        from roskva.cli import apps

        status: int = getattr(apps, name)(arguments)
        return status

    return act


def _of_users(name: str) -> Callable[[argparse.Namespace], int]:
    def act(arguments: argparse.Namespace) -> int:
        from roskva.cli import users

        status: int = getattr(users, name)(arguments)
        return status

    return act


def _conformance(arguments: argparse.Namespace) -> int:
    from roskva.cli.conformance import conformance

    return conformance(arguments)


def _simulate(arguments: argparse.Namespace) -> int:
    from roskva.cli.simulate import simulate

    return simulate(arguments)


def _load(arguments: argparse.Namespace) -> int:
    from roskva.cli.load import load

    return load(arguments)


_LOAD_MORE: Final = """\
For whoever runs a service and wants to know what it bears: it shows the key of trusted servers, which only an operator has, and it loads
the service with all that is asked for. Never aim it at a service of somebody else. Its clients speak the real protocol over the trusted
channel: they handshake, register, acknowledge, heartbeat and repeat. Versions are microseconds since 1970, so the latency is that from when
a publish was due to when a client was told. The service must allow so many clients: see `connections_max`. Ctrl-C ends it with what was
measured; a second one at once. The exit status is 1 if not all clients were in sync at the end, or one was not told of an accepted version.

examples:
  roskva load --clients 1000 --rate 200 --fan-out 5 --seconds 30
  roskva load --clients 100000 --update-every-s 480 --state crowd.state
  roskva load --clients 100000 --update-every-s 480 --state crowd.state --resume --arrivals-per-s 3000
  roskva load --clients 1000 --rate 100 --drop 0.01 --seconds 60 --json"""

_SIMULATE_MORE: Final = """\
The real client, Registrar, Matcher and pipeline tasks in one process, on virtual time, with faults of every kind drawn from the seed;
then the faults stop, and every promise is checked. The same seed is the same world. Exit status 1 if any failed.

examples:
  roskva simulate --seeds 1-2000
  roskva simulate --seeds 100000-100000 --minutes 60
  roskva simulate --seed 24 --trace
  roskva simulate --seed 24 --minimize"""

_CONFORMANCE_MORE: Final = """\
Plays the client's side of the protocol's frozen transcripts against a server, with a client and objects of its own that it deletes
again, and compares what the server says; or, with --serve, plays the server's side for a client and judges what that says. Prints
what passed, failed or was skipped, with the first difference; exit status 1 if any failed. See docs/conformance.md.

examples:
  roskva conformance http://127.0.0.1:8470
  roskva conformance http://127.0.0.1:8470 --channel longpoll --only 04 --only 07
  roskva conformance --serve 9000
  roskva conformance --list"""

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

_APP_MORE: Final = """\
They are tables of the settings file, which is made if there is none; comments in it stay. A running service takes changes up by itself.
The file holds hashes of keys only: a key is shown once, alone on standard output.

examples:
  roskva app create shop --auth jwt --jwt-keys shop.pem --origin https://shop.example
  roskva app list
  roskva app key add shop
  roskva app key list shop
  roskva app key remove shop 3fa9c1"""

_USER_MORE: Final = """\
To revoke changes the settings file; a running service takes it up by itself, and the user's clients must show newer credentials. To
erase collects all clients of the user, for good; it does not revoke anything.

examples:
  roskva user revoke shop ann
  roskva user clients shop ann
  roskva user erase shop ann --yes"""

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
