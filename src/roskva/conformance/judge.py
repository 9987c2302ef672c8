"""Judges what a client says in one transcript: what it must say it says, and nothing that the protocol forbids (docs/protocol.md, Never).

How a client packs what it says, and how often it says it, is its own business. Knows no network and no clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from roskva.conformance import transcripts as script
from roskva.conformance.outcome import Difference
from roskva.conformance.transcripts import Deed, Transcript, Wishes
from roskva.errors import RoskvaError
from roskva.model import name_from_text
from roskva.protocol.messages import ClientMessage, Config, Init, Notify, ServerMessage, Sync, decode_client
from roskva.protocol.summaries import bucket_of, bucket_summaries

APPLICATION: Final = "demo"
DEVICE: Final = "phone"
UNKNOWN: Final = "unknown"
_REPORTED: Final = ("notify", "failure")  # of what a client tells its application: what must be told, and as it is shown


class Said(NamedTuple):
    """One thing that a client said."""

    what: str
    detail: str = ""
    version: str | None = None

    def __str__(self) -> str:
        version = f", version {self.version}" if self.version is not None else ""
        return f"{self.what} {self.detail}".strip() + version


class Judge:
    def __init__(self, transcript: Transcript, config: Config) -> None:
        self._config = config
        self._wishes = Wishes()
        self._before: frozenset[bytes] = frozenset()  # what was wished for before the last deed
        self._granted: set[str] = set()
        self._tokens: dict[str, str] = {}  # what the transcript calls them: in the order in which they were used
        self._clients_token = ""  # the last one that the client itself was granted, and did not have to forget
        self._kept_before = ""  # as that, until the client uses what it was granted since: the grant may still be on its way
        self._asking = False  # a handshake is under way: what is granted was not used yet
        self._nonces: set[str] = set()
        self._last_op: dict[str, int] = {}
        self._sent: set[tuple[bytes, str, str | None, int]] = set()
        self._busy = False
        self._not_yet: set[tuple[bytes, str, str | None, int]] = set()  # sent while the application is busy
        self._pool: list[Said] = []
        self._told: list[str] = []
        self._wanted_told = [line for step in transcript.steps for line in step.told if line.split(":")[0] in _REPORTED]
        self._held: dict[bytes, str] = {}
        self.last: ClientMessage | None = None
        self.signed_out = False

    # What happens, and what the server says.

    def follow(self, deed: Deed) -> None:
        self._before = frozenset(self._wishes.names)
        self._wishes.follow(deed)
        self._pool = [one for one in self._pool if one.what != "use"]
        if deed.kind == script.REGISTER and "version" in deed.words:
            self._held[name_from_text(deed.words["name"])] = deed.words["version"]
        if deed.kind == script.BUSY:
            self._busy = True
        elif deed.kind == script.DONE:
            self._busy = False
            self._not_yet.clear()
        elif deed.kind == script.SIGN_OUT:
            self.signed_out = True

    def granted(self, token: str, to_the_client: bool = True) -> None:
        self._granted.add(token)
        if to_the_client:
            self._clients_token = token  # and `_kept_before` stays, until this one is used
        else:
            self._name(token)

    def _name(self, token: str) -> None:
        self._tokens.setdefault(token, f"TOKEN-{len(self._tokens) + 1}")

    def answered(self, message: ServerMessage) -> None:
        """The server said this to the client."""
        if message.grant is not None:
            self.granted(message.grant.token)
        if message.start_anew is not None and not message.start_anew.keep and message.token == self._clients_token:
            self._clients_token = self._kept_before = ""
        for one in message.notify:
            self._sent.add(_key(one))
            if self._busy:
                self._not_yet.add(_key(one))

    # What the client says.

    def heard(self, data: bytes) -> ClientMessage:
        """The message, if nothing is wrong with it."""
        try:
            message = decode_client(data, self._config.message_bytes_max)
        except RoskvaError as error:
            raise Difference(f"{error.what} It was: {data[:300].decode(errors='replace')}") from None
        self._check(message)
        again = message.init is not None and self._asking  # it repeats itself: the answer takes its time
        self._pool += [one for one in self._said(message) if not (again and one.what == "init")]
        if message.init is not None:
            self._asking = True
        elif message.token == self._clients_token:
            self._asking, self._kept_before = False, message.token
        self.last = message
        return message

    def _check(self, message: ClientMessage) -> None:
        if message.summary is None:
            raise Difference("a message of the client has no summary")
        if self._wishes.of(message.summary.digest) is None:
            raise Difference(f"the summary {message.summary} is of no set that the application wished for")
        if (message.init is not None) == bool(message.token):
            raise Difference("a message has either a token or an init")
        if message.init is not None:
            self._check_init(message.init)
            return
        if message.token not in self._granted:
            raise Difference(f"the token {message.token[:40]!r} was never granted")
        self._name(message.token)
        self._check_numbers(message)
        names = [*message.register, *message.unregister, *message.acks]
        if len(names) + len(message.sync.objects or () if message.sync else ()) > self._config.operations_per_message_max:
            raise Difference("a message has more operations than operations_per_message_max")
        if message.forget and not self.signed_out:
            raise Difference("the client asks to be forgotten, and the application did not sign out")
        self._check_operations(message)
        if message.sync is not None:
            self._check_sync(message.sync)

    def _check_init(self, init: Init) -> None:
        if init.nonce in self._nonces:
            raise Difference(f"the nonce {init.nonce!r} was used before")
        self._nonces.add(init.nonce)
        if (init.application, init.device) != (APPLICATION, DEVICE):
            raise Difference(f"the client is {init.device!r} of {init.application!r}, and should be {DEVICE!r} of {APPLICATION!r}")
        if (init.prior or "") not in (self._clients_token, self._kept_before if self._asking else self._clients_token):
            wanted = self._tokens.get(self._clients_token, "none")
            raise Difference(f"`prior` is {self._tokens.get(init.prior or '', 'none')}, and the token that the client keeps is {wanted}")

    def _check_numbers(self, message: ClientMessage) -> None:
        numbers = [one.op for one in message.register] + [one.op for one in message.unregister]
        numbers += [message.sync.op] if message.sync is not None else []
        last = self._last_op.get(message.token, 0)
        if numbers and (min(numbers) <= last or len(set(numbers)) < len(numbers)):
            raise Difference(f"the operation numbers {numbers[:5]} are not above {last}, or not all different")
        self._last_op[message.token] = max([last, *numbers])

    def _check_operations(self, message: ClientMessage) -> None:
        for one in message.register:
            name = name_from_text(one.object)
            if name not in self._wishes.names | self._before:
                raise Difference(f"{one.object} is registered, and the application did not wish for it")
            if one.version is not None and one.version != self._held.get(name):
                raise Difference(f"{one.object} is registered as held in version {one.version}, and the application holds none such")
        for gone in message.unregister:
            if name_from_text(gone.object) in self._wishes.names & self._before:
                raise Difference(f"{gone.object} is unregistered, and the application wishes for it")
        for ack in message.acks:
            key = (name_from_text(ack.object), ack.seqno, ack.version, ack.epoch)
            if key not in self._sent:
                raise Difference(f"an acknowledgement of what was not sent: {ack}")
            if key in self._not_yet:
                raise Difference(f"{ack.object}, version {ack.version} was acknowledged before the application was done with it")

    def _check_sync(self, sync: Sync) -> None:
        for wished in (frozenset(self._wishes.names), self._before):
            if sync.summaries is not None:
                exact = list(sync.summaries) == bucket_summaries(sorted(wished))
            else:
                stated = {name_from_text(one.object) for one in sync.objects or ()}
                named = None if sync.buckets is None else set(sync.buckets)
                exact = stated == {name for name in wished if named is None or bucket_of(name) in named}
            if exact:
                return
        raise Difference("a sync does not state exactly what the application wishes for")

    def _said(self, message: ClientMessage) -> Iterator[Said]:
        if message.init is not None:
            yield Said("init", "with prior" if message.init.prior else "without prior")
        else:
            yield Said("use", self._tokens.get(message.token, message.token))
        for one in message.register:
            yield Said("register", one.object, one.version)
        for gone in message.unregister:
            yield Said("unregister", gone.object)
        for ack in message.acks:
            yield Said("acknowledge", ack.object, ack.version or UNKNOWN)
        if message.sync is not None and message.sync.summaries is not None:
            yield Said("compare buckets")
        elif message.sync is not None and message.sync.buckets is not None:
            yield Said("state buckets")
        if message.forget:
            yield Said("forget")

    # The verdict.

    def missing(self, lines: Iterable[ClientMessage | ServerMessage]) -> list[Said]:
        """What the client has not said yet of what these lines show."""
        pool, missing = list(self._pool), []
        for wanted in self._wanted(lines):
            if wanted not in pool:
                missing.append(wanted)
            elif wanted.what != "use":
                pool.remove(wanted)
        return missing

    def _wanted(self, lines: Iterable[ClientMessage | ServerMessage]) -> list[Said]:
        """What these lines show of the client, without acknowledgements of what a later version has taken the place of."""
        said = [one for line in lines if isinstance(line, ClientMessage) for one in self._said(line)]
        return [one for one in said if one.what != "acknowledge" or not any(_later(other, one) for other in said)]

    def agrees(self, lines: Iterable[ClientMessage | ServerMessage]) -> bool:
        """The client's last word is of the set that the last of these lines shows."""
        shown = [line.summary for line in lines if isinstance(line, ClientMessage)]
        return not shown or (self.last is not None and self.last.summary == shown[-1])

    def step_done(self, lines: Iterable[ClientMessage | ServerMessage]) -> None:
        for wanted in self._wanted(lines):
            if wanted in self._pool:
                self._pool.remove(wanted)
        if any(one.what == "init" for one in self._pool):
            raise Difference("the client made a handshake for which there was no reason")

    def told(self, lines: Iterable[str]) -> None:
        self._told += [line.strip() for line in lines]

    def last_answer(self) -> str:
        """To the last question whether the client is in sync."""
        return next((line for line in reversed(self._told) if line.startswith("in_sync")), "")

    def check_told(self, final: bool) -> bool:
        """What the client told its application, by object and in order, is what the transcript shows. Not final: so far.

        A version may be left out if a later one is told.
        """
        shown, heard = _by_object(self._wanted_told), _by_object(line for line in self._told if line.split(":")[0] in _REPORTED)
        for name in heard.keys() | shown.keys():
            rest = _after(shown.get(name, []), heard.get(name, []))
            if rest is None or (final and any(not _may_be_left_out(rest, index) for index in range(len(rest)))):
                raise Difference(
                    f"the application was told of {name}: {heard.get(name, [])}, and the transcript shows {shown.get(name, [])}"
                )
            if rest:
                return False
        return True


def _key(one: Notify) -> tuple[bytes, str, str | None, int]:
    return name_from_text(one.object), one.seqno, one.version, one.epoch


def _later(other: Said, one: Said) -> bool:
    if (other.what, other.detail) != (one.what, one.detail) or UNKNOWN in (other.version, one.version):
        return False
    return int(other.version or 0) > int(one.version or 0)


def _by_object(lines: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in lines:
        words = re.fullmatch(r"(notify|failure): (\S+), (.*)", line)
        if words is None:
            raise Difference(f"the driver reported {line!r}, which is of no known form")
        found.setdefault(words[2], []).append(f"{words[1]}: {words[3]}")
    return found


def _after(shown: list[str], heard: list[str]) -> list[str] | None:
    """What is shown after all that was heard; None if that is not what is shown."""
    place = 0
    for line in heard:
        while place < len(shown) and shown[place] != line and _may_be_left_out(shown, place):
            place += 1
        if place == len(shown) or shown[place] != line:
            return None
        place += 1
    return shown[place:]


def _may_be_left_out(shown: list[str], index: int) -> bool:
    versions = [int(found[1]) if (found := re.fullmatch(r"notify: version (\d+)", line)) else -1 for line in shown]
    return versions[index] >= 0 and any(later > versions[index] for later in versions[index + 1 :])
