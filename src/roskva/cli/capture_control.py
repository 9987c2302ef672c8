"""Commands to a capture that runs: what each asks the publisher, over the socket in its data directory (capture/publisher/control.py)."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import socket
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from roskva.cli.drop import agreed
from roskva.cli.http import Refused
from roskva.errors import BadRequest, InvalidSetting, Unavailable

CONFIG: Final = "ROSKVA_CAPTURE_CONFIG"
LOCK: Final = "capture.lock"  # in the data directory, held by who runs there
ANSWER_BYTES_MAX: Final = 1 << 28
PATIENCE_S: Final = 5.0  # beyond the time within which a publisher answers
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(KiB|MiB|GiB)", re.IGNORECASE)
_UNITS: Final = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_FILE_SUFFIX: Final = "_bytes_per_s"  # of the settings file's names for the same limits


class NotRunning(Unavailable):
    """Nobody answers at the socket."""

    advice = "Is it running? `roskva capture` starts it; --config FILE or --data DIR says which one is meant."


class Starting(NotRunning):
    """It runs, and starts, or waits for its database."""

    advice = "It goes on by itself when it can."


def holder_of(data: Path) -> str:
    """The number of the process that runs `roskva capture` on this data directory; empty: none does."""
    try:
        with (data / LOCK).open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return (lock.read().split() or ["?"])[0]
    except OSError:
        return ""
    return ""


def config_of(arguments: argparse.Namespace) -> Path:
    """--config, ROSKVA_CAPTURE_CONFIG, or capture.toml."""
    from roskva.capture.settings import FILE_NAME

    return Path(arguments.config or os.environ.get(CONFIG) or FILE_NAME)


def data_of(arguments: argparse.Namespace) -> Path:
    """--data, or what the settings file says: commands need nothing else of it."""
    if arguments.data:
        return Path(arguments.data)
    from roskva.capture.settings import load

    return load(config_of(arguments)).publisher.data


def ask(path: Path, command: str, timeout_s: float | None = None, **given: object) -> Any:
    """The answer to one command, within the time that a publisher may take for it. Refused, in the publisher's own words; NotRunning if
    nobody is there."""
    from roskva.capture.limits import command_s_max

    request = json.dumps({"command": command, **{name: value for name, value in given.items() if value is not None}})
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(command_s_max(command) + PATIENCE_S if timeout_s is None else timeout_s)
            line.connect(str(path))
            line.sendall(request.encode() + b"\n")
            answer = _all_of(line)
    except OSError as error:
        if holder := holder_of(path.parent):
            log = path.parent / "log" / "publisher.log"
            raise Starting(
                f"Process {holder} runs `roskva capture` there, but its publisher does not answer yet: {log} says why."
            ) from None
        raise NotRunning(f"Nobody answers at {path} ({error.strerror or error}).") from None
    try:
        found = json.loads(answer)
        if found["ok"]:
            return found["answer"]
        raise Refused(str(found["message"]))
    except (ValueError, KeyError, TypeError):
        raise NotRunning(f"What answers at {path} is no publisher of capture, or stopped in the middle of its answer.") from None


def _all_of(line: socket.socket) -> bytes:
    pieces, size = [], 0
    while piece := line.recv(1 << 16):
        pieces.append(piece)
        size += len(piece)
        if size > ANSWER_BYTES_MAX:
            raise BadRequest(f"The publisher's answer has more than {ANSWER_BYTES_MAX:,} bytes.")
    return b"".join(pieces)


def asked(arguments: argparse.Namespace, command: str, **given: object) -> Any:
    from roskva.capture.running.places import CONTROL

    return ask(data_of(arguments) / CONTROL, command, None, **given)


def flow_in(text: str) -> tuple[str, int | None]:
    """APPLICATION, or APPLICATION/SHARD."""
    application, slash, shard = text.partition("/")
    if not application or (slash and not (shard.isascii() and shard.isdigit())):
        raise BadRequest(f"{text!r} names no flow: APPLICATION, for all its shards, or APPLICATION/SHARD is expected, such as search/3.")
    return application, int(shard) if slash else None


def _of_flow(command: str, done: str, **more: Callable[[argparse.Namespace], object]) -> Callable[[argparse.Namespace], int]:
    def act(arguments: argparse.Namespace) -> int:
        application, shard = flow_in(arguments.flow)
        answer = asked(arguments, command, application=application, shard=shard, **{name: of(arguments) for name, of in more.items()})
        _print(arguments, answer, f"{done}: {', '.join(answer) or 'none'}.")
        return 0

    return act


pause = _of_flow("pause", "Paused", why=lambda arguments: arguments.why)
resume = _of_flow("resume", "Resumed")
_to_another = _of_flow("reassign", "To another process", member=lambda arguments: arguments.to)
_back = _of_flow("reassign", "As the balance has them", back=lambda arguments: True)


def reassign(arguments: argparse.Namespace) -> int:
    if arguments.to and arguments.back:
        raise BadRequest("Name the process to give the flow to, or give --back for the balance: not both.")
    return (_back if arguments.back else _to_another)(arguments)


def rewind(arguments: argparse.Namespace) -> int:
    application, shard = flow_in(arguments.flow)
    to = place_in(arguments.to)
    if not arguments.yes:
        ahead = asked(arguments, "ahead", application=application, shard=shard, to=to)
        to = ahead["to"]  # what was asked about, and is looked for once
        if ahead["flows"]:
            print(f"What {', '.join(ahead['flows'])} did not get up to {to} yet is skipped, for good.")
            if not agreed("capture rewind"):
                print("Nothing was changed.")
                return 1
    answer = asked(arguments, "rewind", application=application, shard=shard, to=to)
    _print(arguments, answer, "\n".join(f"{flow} goes on after {position}." for flow, position in answer.items()))
    return 0


def place_in(text: str) -> str | float:
    """oldest, end, a position, or a time with its zone, as seconds since 1970."""
    if text in ("oldest", "end") or re.fullmatch(r"[0-9]+/[0-9.]+", text):
        return text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise BadRequest(
            f"{text!r} is no place in the log: oldest, end, a position such as 1/4711, or a time such as 2026-01-31T12:00:00Z."
        )
    return moment.timestamp()


def move(arguments: argparse.Namespace) -> int:
    if bool(arguments.publisher) == arguments.back:
        raise BadRequest("Name the publisher to move to, or give --back for the order of the settings.")
    answer = asked(arguments, "move", application=arguments.application, to=arguments.publisher or "")
    _print(arguments, answer, f"Flows of {arguments.application} go to the first of these that lives: {', '.join(answer['order'])}.")
    return 0


def remove(arguments: argparse.Namespace) -> int:
    if not arguments.yes:
        print(f"Datamarkers of {arguments.application} are forgotten, and the log is no longer kept for it.")
        if not agreed("capture remove"):
            print("Nothing was removed.")
            return 1
    answer = asked(arguments, "remove", application=arguments.application)
    _print(arguments, answer, f"Forgotten: {', '.join(answer)}.")
    return 0


def set_limits(arguments: argparse.Namespace) -> int:
    answer = asked(arguments, "set", **limits_in(arguments.pairs))
    _print(arguments, answer, "\n".join(f"{name} = {value}" for name, value in answer.items()))
    return 0


def limits_in(pairs: list[str]) -> dict[str, str | float]:
    """NAME=VALUE each; names also as the settings file has them, sizes also as 64 MiB."""
    found: dict[str, str | float] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name, text = name.strip().removesuffix(_FILE_SUFFIX), text.strip()
        if not equals or not name or not text:
            raise InvalidSetting(f"{pair!r} is not of the form NAME=VALUE.")
        if size := _SIZE.fullmatch(text):
            found[name] = float(size[1]) * _UNITS[size[2].lower()]
        elif re.fullmatch(r"-?[0-9]{1,18}", text):
            found[name] = int(text)
        elif re.fullmatch(r"-?[0-9]*\.[0-9]+", text):
            found[name] = float(text)
        else:
            found[name] = text
    return found


def _print(arguments: argparse.Namespace, answer: Any, text: str) -> None:
    print(json.dumps(answer) if arguments.json else text)
