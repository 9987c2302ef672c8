"""The frozen transcripts as they are shipped: read, and split into what happens and what is said. Reads files of this package only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import takewhile
from typing import Final

from roskva.errors import BadRequest
from roskva.model import name_from_text
from roskva.protocol.messages import ClientMessage, ServerMessage, decode_client, decode_server
from roskva.protocol.summaries import SetDigest

VERSION: Final = 1
SLOW_S: Final = 10.0  # a transcript in which more time than that passes is played only on demand
MESSAGE_BYTES_MAX: Final = 1 << 20

START: Final = "start"
END: Final = "end"
SIGN_OUT: Final = "sign out"
REGISTER: Final = "register"
REGISTER_MANY: Final = "register many"
UNREGISTER: Final = "unregister"
PUBLISH: Final = "publish"
BUSY: Final = "busy"
DONE: Final = "done"
BREAK: Final = "break"
CONNECT: Final = "connect"
WAIT: Final = "wait"
CLONE: Final = "clone"
COLLECT: Final = "collect"
ASK: Final = "ask"
CONFIGURE: Final = "configure"

_DEEDS: Final[Mapping[str, str]] = {
    r"the application starts": START,
    r"the application ends": END,
    r"the application signs out": SIGN_OUT,
    r"register object-(?P<first>\d+) to object-(?P<last>\d+)": REGISTER_MANY,
    r"register (?P<name>\S+?)(?:, holding version (?P<version>\d+))?": REGISTER,
    r"unregister (?P<name>\S+)": UNREGISTER,
    r"publish (?P<name>\S+) version (?P<version>\d+)(?: by (?P<source>\S+))?": PUBLISH,
    r"the application is busy": BUSY,
    r"the application is done": DONE,
    r"the connection breaks": BREAK,
    r"the client connects again": CONNECT,
    r"(?P<seconds>[0-9.]+) s pass": WAIT,
    r"another process starts with a copy of the state": CLONE,
    r"the service has collected client-1": COLLECT,
    r"in sync\?": ASK,
    r"the service is configured with (?P<name>\w+) (?P<value>\S+)": CONFIGURE,
}


@dataclass(frozen=True, slots=True)
class Deed:
    """A `>` line: what happens."""

    text: str
    kind: str
    words: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Step:
    deed: Deed
    lines: Sequence[ClientMessage | ServerMessage]  # the `C:` and `S:` lines that answer it
    told: Sequence[str]  # the `A:` lines


@dataclass(frozen=True, slots=True)
class Transcript:
    name: str
    title: str
    steps: Sequence[Step]

    @property
    def seconds(self) -> float:
        return sum(float(step.deed.words["seconds"]) for step in self.steps if step.deed.kind == WAIT)

    @property
    def configured(self) -> dict[str, str]:
        """What the service must be configured with."""
        return {step.deed.words["name"]: step.deed.words["value"] for step in self.steps if step.deed.kind == CONFIGURE}


@dataclass
class Wishes:
    """The set of registrations that the application of a transcript wishes for, and those that it wished for at any time before."""

    names: set[bytes] = field(default_factory=set)
    _seen: dict[str, frozenset[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._remember()

    def follow(self, deed: Deed) -> None:
        if deed.kind in (START, SIGN_OUT):
            self.names.clear()
        for name in names_of(deed):
            if deed.kind == UNREGISTER:
                self.names.discard(name)
            else:
                self.names.add(name)
        self._remember()

    def _remember(self) -> None:
        self._seen[SetDigest(self.names).summary().digest] = frozenset(self.names)

    def of(self, digest: str) -> frozenset[bytes] | None:
        """The set that this digest stands for, if it is one of those."""
        return self._seen.get(digest)


def names_of(deed: Deed) -> list[bytes]:
    """The objects that are registered or unregistered by it."""
    if deed.kind == REGISTER_MANY:
        return [b"object-%d" % number for number in range(int(deed.words["first"]), int(deed.words["last"]) + 1)]
    return [name_from_text(deed.words["name"])] if deed.kind in (REGISTER, UNREGISTER) else []


def read_deed(text: str) -> Deed:
    for pattern, kind in _DEEDS.items():
        found = re.fullmatch(pattern, text)
        if found is not None:
            return Deed(text, kind, {name: value for name, value in found.groupdict().items() if value is not None})
    raise BadRequest(f"A transcript cannot say: {text}")


def read(name: str, text: str) -> Transcript:
    comment = " ".join(line.removeprefix("# ") for line in takewhile(lambda line: line.startswith("#"), text.splitlines()))
    title = comment.partition(". ")[0].removesuffix(".") + "."
    steps: list[Step] = []
    lines: list[ClientMessage | ServerMessage] = []
    told: list[str] = []
    for line in text.splitlines():
        who, _, rest = line.partition(" ")
        if who == ">":
            lines, told = [], []
            steps.append(Step(read_deed(rest), lines, told))
        elif who == "C:":
            lines.append(decode_client(rest.encode(), MESSAGE_BYTES_MAX))
        elif who == "S:":
            lines.append(decode_server(rest.encode()))
        elif who == "A:":
            told.append(rest)
    return Transcript(name, title, steps)


def load(version: int = VERSION) -> list[Transcript]:
    folder = resources.files("roskva.conformance") / f"v{version}"
    files = sorted((one for one in folder.iterdir() if one.name.endswith(".txt")), key=lambda one: one.name)
    return [read(one.name.removesuffix(".txt"), one.read_text(encoding="utf-8")) for one in files]


def select(transcripts: Iterable[Transcript], only: Sequence[str]) -> list[Transcript]:
    """Those whose names begin with one of these (`04`, `04-notification`); all, if none is given."""
    every = list(transcripts)
    for beginning in only:
        if not any(one.name.startswith(beginning) for one in every):
            raise BadRequest(f"There is no transcript {beginning!r}: `roskva conformance --list` shows them.")
    return [one for one in every if not only or any(one.name.startswith(beginning) for beginning in only)]
