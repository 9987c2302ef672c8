"""The commands that try a service, a client or the code itself: `conformance`, `simulate`, `load`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, Final

from roskva.cli.options import SEEN_BY_OTHERS, add_command, add_url, positive


def add_conformance(commands: Any) -> None:
    check = add_command(
        commands, "conformance", _conformance, "check a server or a client of somebody else by transcripts", _CONFORMANCE_MORE
    )
    check.add_argument("url", metavar="URL", nargs="?", help="the server to check")
    check.add_argument("--serve", metavar="PORT", type=int, help="play the server there, and check the client that comes (0 picks a port)")
    check.add_argument("--list", action="store_true", help="print the transcripts, and end")
    check.add_argument("--only", metavar="NAME", action="append", default=[], help="those whose name begins so; may be repeated")
    check.add_argument("--channel", choices=("websocket", "longpoll"), default="websocket", help="to a server (default: websocket)")
    check.add_argument("--application", metavar="NAME", default="demo", help="that the server knows (default: demo)")
    key = f"a publish key of it, or @FILE with one, if the server asks for one (default: ROSKVA_PUBLISH_KEY); {SEEN_BY_OTHERS}"
    check.add_argument("--key", metavar="KEY|@FILE", default=os.environ.get("ROSKVA_PUBLISH_KEY", ""), help=key)
    check.add_argument("--patience", metavar="SECONDS", type=positive(float), default=10.0, help="for each answer (default: 10)")
    check.add_argument("--slow", action="store_true", help="also those in which minutes pass")
    check.add_argument("--json", action="store_true", help="print JSON, one object a line")


def add_simulate(commands: Any) -> None:
    simulate = add_command(commands, "simulate", _simulate, "run simulated worlds that try to break the promise", _SIMULATE_MORE)
    simulate.add_argument("--seeds", metavar="A-B", default="1-200", help="a world for each (default: 1-200)")
    simulate.add_argument("--minutes", metavar="M", type=positive(float), help="go on from seed A for so long")
    simulate.add_argument("--processes", metavar="N", type=positive(int), help="worlds at once (default: one per core)")
    simulate.add_argument("--seed", metavar="N", type=int, help="one world, with all that its seed stands for")
    simulate.add_argument("--trace", action="store_true", help="with --seed: print what happened, a line for each event")
    simulate.add_argument("--minimize", action="store_true", help="with --seed: the smallest world that still fails in the same way")
    simulate.add_argument("--json", action="store_true", help="print a JSON object")


def add_load(commands: Any) -> None:
    load = add_command(commands, "load", _load, "simulate many clients and publishes against a service of your own", _LOAD_MORE)
    number, seconds = positive(int), positive(float)
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
    load.add_argument(
        "--batch",
        metavar="N",
        type=number,
        default=1,
        help="updates in one publish request, at most: those that are due together, or while all connections wait (default: 1)",
    )
    load.add_argument("--seconds", metavar="S", type=seconds, help="end so long after all clients are in sync (default: at Ctrl-C)")
    load.add_argument("--lines", metavar="N", type=number, default=4, help="trusted connections of each process (default: 4)")
    load.add_argument("--processes", metavar="N", type=number, default=1, help="that simulate clients, a part each (default: 1)")
    load.add_argument("--drop", metavar="PART", type=float, default=0.0, help="part of the messages that is lost, either way: 0.01 is 1 %%")
    load.add_argument("--state", metavar="FILE", type=Path, help="keep the clients' tokens there, and return with the same ids")
    load.add_argument("--resume", action="store_true", help="with --state: go on with the kept sessions, as after a broken connection")
    load.add_argument("--application", metavar="NAME", default="demo", help="whose clients they are (default: demo)")
    load.add_argument("--prefix", metavar="TEXT", default="load", help="begins the names of objects and devices (default: load)")
    key = "the key `trusted` of the service's keys.json, or @FILE with it (default: ROSKVA_TRUSTED_KEY, or that of --data); "
    load.add_argument("--key", metavar="KEY|@FILE", default=os.environ.get("ROSKVA_TRUSTED_KEY", ""), help=key + SEEN_BY_OTHERS)
    load.add_argument(
        "--publish-key",
        metavar="KEY|@FILE",
        default=os.environ.get("ROSKVA_PUBLISH_KEY", ""),
        help="a publish key of the application, if it has any (default: ROSKVA_PUBLISH_KEY)",
    )
    load.add_argument("--data", metavar="DIR", help="the service's data directory, for the key (default: as `up` has it)")
    add_url(load)


def _conformance(arguments: argparse.Namespace) -> int:
    from roskva.cli.conformance import conformance

    return conformance(arguments)


def _simulate(arguments: argparse.Namespace) -> int:
    from roskva.cli.simulate import simulate

    return simulate(arguments)


def _load(arguments: argparse.Namespace) -> int:
    from roskva.cli.load import load

    return load(arguments)


_CONFORMANCE_MORE: Final = """\
Plays the client's side of the protocol's frozen transcripts against a server, with a client and objects of its own that it deletes
again, and compares what the server says; or, with --serve, plays the server's side for a client and judges what that says. Prints
what passed, failed or was skipped, with the first difference; exit status 1 if any failed. See docs/conformance.md.

examples:
  roskva conformance http://127.0.0.1:8470
  roskva conformance http://127.0.0.1:8470 --channel longpoll --only 04 --only 07
  roskva conformance --serve 9000
  roskva conformance --list"""

_SIMULATE_MORE: Final = """\
The real client, Registrar, Matcher and pipeline tasks in one process, on virtual time, with faults of every kind drawn from the seed;
then the faults stop, and every promise is checked. The same seed is the same world. Exit status 1 if any failed.

examples:
  roskva simulate --seeds 1-2000
  roskva simulate --seeds 100000-100000 --minutes 60
  roskva simulate --seed 24 --trace
  roskva simulate --seed 24 --minimize"""

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
