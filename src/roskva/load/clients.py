"""Very many clients in columns: what each of them says and hears, by docs/protocol.md (Thialfi 3.3 and 4.1).

Theory of operation. A client is a place in these columns, about 260 bytes of it, most of that its token. Its objects follow from its number
(plan.py). What it waits for is its state:

    ABSENT        not arrived, or its line is down
    ASKING        an init was sent; with the kept token as `prior`, if there is one
    SPEAKING      the token was used in an empty message: the first of a session, or the first over a new line
    REGISTERING   registrations were sent that are not all confirmed
    SYNCING       all registrations were stated, since the summaries differed
    IN_SYNC       summaries agree and nothing is open; what is due next is a heartbeat

Whatever is not answered is repeated, with pauses that double; every notification is acknowledged at once. In one point it is leaner than a
real client: silence is judged by the line as a whole, not by each client. Pure: time, chance and the way out are given.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from roskva.load.measuring import Counts, Latencies
from roskva.load.plan import Places, Plan
from roskva.load.wheel import Wheel
from roskva.protocol.messages import REGISTERED, ClientMessage, Config, Init, Register, Sync, SyncObject, encode
from roskva.protocol.summaries import SetDigest

ABSENT: Final = 0
ASKING: Final = 1
SPEAKING: Final = 2
REGISTERING: Final = 3
SYNCING: Final = 4
IN_SYNC: Final = 5

_UNTOLD: Final = -1
_TRIES_MAX: Final = 30
_DIGEST_BYTES: Final = 16
_HOPELESS: Final = frozenset(("unknown-application", "invalid-application", "invalid-device"))


class _Notify(Struct, omit_defaults=True):
    """A notification, and the acknowledgement of it: they have the same fields."""

    object: str
    seqno: str
    version: str | None = None
    epoch: int = 0


class _Status(Struct):
    object: str
    state: str
    transient: bool = False
    code: str = ""
    message: str = ""


class _Summary(Struct):
    count: int
    digest: str


class _Grant(Struct):
    nonce: str
    token: str


class _StartAnew(Struct):
    keep: bool
    code: str = ""
    nonce: str = ""


class _Error(Struct):
    code: str
    message: str = ""
    retry_after_s: float = 0.0


class _Hint(Struct):
    op: int = 0


class _Wanted(Struct):
    wanted: bool = False
    message: str = ""


class _Heard(Struct):
    """The parts of a server's message that matter here."""

    token: str = ""
    summary: _Summary | None = None
    unsettled: int = 0
    notify: list[_Notify] = []
    status: list[_Status] = []
    grant: _Grant | None = None
    start_anew: _StartAnew | None = None
    sync_request: _Hint | None = None
    config: Config | None = None
    error: _Error | None = None
    credential: _Wanted | None = None


_decoder = msgspec.json.Decoder(_Heard)
_encoder = msgspec.json.Encoder()


class Clients:
    """Clients `first` to `first + count - 1` of a plan. Times are seconds of any steady clock; versions microseconds of the wall's."""

    def __init__(
        self, plan: Plan, first: int, count: int, send: Callable[[int, bytes], None], dice: Callable[[], float], run: str, now_s: float
    ) -> None:
        self.plan = plan
        self.first = first
        self.count = count
        self.counts = Counts()
        self.latencies = Latencies()
        self.since_us = 0  # versions from then on are of this run
        self.present = 0  # those that are not absent
        self.failure = ""  # why no patience helps
        self.config = Config()
        self.resume = plan.resume  # whether those that arrive go on with their kept sessions
        self._send_out = send
        self._dice = dice
        self._run = run  # makes nonces of this run different from any other's
        self._places = Places(plan)
        self._wheel = Wheel(count, now_s)
        self._epoch = 0
        self._granted = False
        self.tokens: list[str] = [""] * count
        self.states = bytearray(count)
        self.versions = array("q", [_UNTOLD]) * (count * plan.registrations)
        self._confirmed = bytearray(count * plan.registrations)
        self._digests = bytearray(count * _DIGEST_BYTES)
        self._ops = array("I", [0]) * count
        self._inits = array("I", [0]) * count
        self._tries = bytearray(count)
        self._agreed = bytearray(count)  # whether the last summary that came is that of what was wished for

    # Arriving and leaving.

    def arrive(self, index: int, now_s: float) -> None:
        """The client starts, or speaks again over a new line."""
        if not any(self._digests[index * _DIGEST_BYTES : (index + 1) * _DIGEST_BYTES]):
            names = self.plan.names_of(self.first + index)
            total = SetDigest(name.encode() for name in names).total
            self._digests[index * _DIGEST_BYTES : (index + 1) * _DIGEST_BYTES] = total.to_bytes(_DIGEST_BYTES, "big")
            self.counts.arrived += 1
        self._tries[index] = 0
        if self.tokens[index] and (self._inits[index] or self.resume):
            self._speak(index, now_s)
        else:
            self._ask(index, now_s)

    def gone(self, index: int) -> None:
        """Its line is down: what was sent may be lost."""
        self._become(index, ABSENT)

    def _become(self, index: int, state: int) -> None:
        before = self.states[index]
        if before == state:
            return
        self.present += (before == ABSENT) - (state == ABSENT)
        if before == IN_SYNC:
            self.counts.in_sync -= 1
            self.counts.registered -= self.plan.registrations
        if state == IN_SYNC:
            self.counts.in_sync += 1
            self.counts.registered += self.plan.registrations
        if state in (ASKING, SPEAKING):
            self._agreed[index] = 0  # nothing of this session came yet
        self.states[index] = state

    # What it says.

    def tick(self, now_s: float) -> None:
        """Repeat what was not answered, and say something where nothing was said for long."""
        for index in self._wheel.due(now_s):
            state = self.states[index]
            if state == IN_SYNC:
                self.counts.heartbeats += 1
                self._say(index, self._head(index) + b"}", now_s)
                continue
            if state == ABSENT:
                continue
            self.counts.retries += 1
            if state == ASKING:
                self._ask(index, now_s)
            elif state == SPEAKING:
                self._speak(index, now_s)
            elif state == REGISTERING:
                self._register(index, now_s)
            else:
                self._sync(index, now_s)

    def _ask(self, index: int, now_s: float) -> None:
        self._become(index, ASKING)
        self._inits[index] += 1
        init = Init(
            nonce=self._nonce(index),
            application=self.plan.application,
            device=self.plan.device(self.first + index),
            prior=self.tokens[index] or None,
        )
        self._say(index, encode(ClientMessage(init=init)), now_s, answered=False)

    def _nonce(self, index: int) -> str:
        return f"{self._run}-{self._inits[index]}"

    def _speak(self, index: int, now_s: float) -> None:
        self._become(index, SPEAKING)
        self._say(index, self._head(index) + b"}", now_s, answered=False)

    def _register(self, index: int, now_s: float) -> None:
        self._become(index, REGISTERING)
        first = index * self.plan.registrations
        wishes = [
            Register(op=self._op(index), object=name)
            for place, name in enumerate(self.plan.names_of(self.first + index))
            if not self._confirmed[first + place]
        ]
        self._say(index, self._head(index) + b',"register":' + _encoder.encode(wishes) + b"}", now_s, answered=False)

    def _sync(self, index: int, now_s: float) -> None:
        self._become(index, SYNCING)
        self.counts.syncs += 1
        objects = [SyncObject(object=name) for name in self.plan.names_of(self.first + index)]
        statement = _encoder.encode(Sync(op=self._op(index), objects=objects))
        self._say(index, self._head(index) + b',"sync":' + statement + b"}", now_s, answered=False)

    def _op(self, index: int) -> int:
        self._ops[index] += 1
        return self._ops[index]

    def _head(self, index: int) -> bytes:
        """Token and summary, as every message begins; the brace that ends it is still missing."""
        return b'{"token":"%b","summary":{"count":%d,"digest":"%b"}' % (
            self.tokens[index].encode(),
            self.plan.registrations,
            self._digest(index).encode(),
        )

    def _digest(self, index: int) -> str:
        return self._digests[index * _DIGEST_BYTES : (index + 1) * _DIGEST_BYTES].hex()

    def _say(self, index: int, message: bytes, now_s: float, answered: bool = True) -> None:
        """`answered`: nothing is open by it, and what is due next is a heartbeat."""
        if answered:
            pause_s = self._silence_s()
        else:
            tries = self._tries[index]
            longest_s = min(self.config.retry_max_s, self.config.retry_min_s * 2.0 ** (tries + 1))
            pause_s = self.config.retry_min_s + self._dice() * max(0.0, longest_s - self.config.retry_min_s)
            self._tries[index] = min(tries + 1, _TRIES_MAX)
        self._wheel.set(index, now_s + pause_s)
        self._send_out(self.first + index, message)

    def _silence_s(self) -> float:
        """How long to say nothing before a heartbeat."""
        return (self.plan.heartbeat_s or self.config.heartbeat_s) * (1.0 + self.config.heartbeat_smear * (2.0 * self._dice() - 1.0))

    # What it hears.

    def received(self, number: int, data: bytes | memoryview, now_s: float, now_us: int) -> None:
        """A message of the service for the client of this number."""
        index = number - self.first
        if not 0 <= index < self.count:
            return
        heard = _decoder.decode(data)
        if heard.grant is not None:
            self._granted_one(index, heard, heard.grant, now_s)
        elif heard.start_anew is not None:
            self._told_to_start_anew(index, heard.token, heard.start_anew, now_s)
        elif heard.error is not None:
            self._refused(index, heard.error, now_s)
        elif heard.credential is not None and heard.credential.wanted:
            self.failure = self.failure or (
                f"The application {self.plan.application} asks its clients who their users are: {heard.credential.message}"
                " Choose one whose `authentication` is none."
            )
        elif heard.token == self.tokens[index] and self.states[index] not in (ABSENT, ASKING):
            self._spoken_to(index, heard, now_s, now_us)

    def _granted_one(self, index: int, heard: _Heard, grant: _Grant, now_s: float) -> None:
        if self.states[index] != ASKING or grant.nonce != self._nonce(index):
            return  # the answer to an init that was repeated meanwhile
        if heard.config is not None:
            self.config = heard.config
        self._granted = True
        self.tokens[index] = grant.token
        self._tries[index] = self._ops[index] = 0
        first = index * self.plan.registrations
        self._confirmed[first : first + self.plan.registrations] = bytes(self.plan.registrations)
        if self._agrees(index, heard.summary):
            self._speak(index, now_s)
        elif heard.summary is not None and heard.summary.count:
            self._sync(index, now_s)
        else:
            self._register(index, now_s)

    def _told_to_start_anew(self, index: int, token: str, refusal: _StartAnew, now_s: float) -> None:
        asking = self.states[index] == ASKING and refusal.nonce == self._nonce(index)
        if not asking and (self.states[index] in (ABSENT, ASKING) or token != self.tokens[index]):
            return
        self.counts.started_anew += 1
        if not refusal.keep:
            self.tokens[index] = ""
        self._ask(index, now_s)

    def _refused(self, index: int, error: _Error, now_s: float) -> None:
        """A whole message was refused: it is repeated when the service said, at the earliest, each client at another moment."""
        self.counts.errors[error.code] += 1
        self.counts.said = error.message
        if error.code in _HOPELESS and not self._granted:
            self.failure = self.failure or error.message
        if self.states[index] in (ASKING, SPEAKING, REGISTERING, SYNCING):
            pause_s = min(max(error.retry_after_s, self.config.retry_min_s), self.config.retry_max_s)
            self._wheel.set(index, now_s + pause_s * (1.0 + self._dice()))

    def _spoken_to(self, index: int, heard: _Heard, now_s: float, now_us: int) -> None:
        if heard.notify:
            self._notified(index, heard.notify, now_s, now_us)
        if heard.status:
            self._confirm(index, heard.status)
        if heard.summary is None:
            return
        state = self.states[index]
        agreed = self._agreed[index] = self._agrees(index, heard.summary)
        if agreed:
            if heard.unsettled == 0:
                self._settled_in(index, state, now_s)
        elif state in (IN_SYNC, SPEAKING) or (state == REGISTERING and self._all_confirmed(index)):
            self._sync(index, now_s)

    def settled(self, number: int, now_s: float) -> None:
        """The line says that nothing is unsettled any more for this one; all else is as the last message said."""
        index = number - self.first
        if 0 <= index < self.count and self._agreed[index] and self.states[index] not in (ABSENT, ASKING):
            self._settled_in(index, self.states[index], now_s)

    def _settled_in(self, index: int, state: int, now_s: float) -> None:
        if state == IN_SYNC or (state == REGISTERING and not self._all_confirmed(index)):
            return
        self._tries[index] = 0
        self._become(index, IN_SYNC)
        # One that goes on with its session is anywhere between two heartbeats: a crowd that came at once does not beat at once.
        resumed = self.resume and not self._inits[index]
        self._wheel.set(index, now_s + self._silence_s() * (self._dice() if resumed else 1.0))

    def _notified(self, index: int, told: Sequence[_Notify], now_s: float, now_us: int) -> None:
        for one in told:
            place = self._places.of(self.first + index, one.object)
            if place < 0:
                continue
            slot = index * self.plan.registrations + place
            if one.version is None:
                self.counts.unknown += 1
                self.versions[slot] = max(self.versions[slot], now_us)  # it covers whatever was published until now
                continue
            if one.epoch > self._epoch:  # the application was reset: versions are counted anew
                self._epoch = one.epoch
                self.versions = array("q", [_UNTOLD]) * len(self.versions)
            version = int(one.version)
            if one.epoch < self._epoch or version <= self.versions[slot]:
                self.counts.repeated += 1
                continue
            self.versions[slot] = version
            if version >= self.since_us > 0:
                self.counts.notified += 1
                self.latencies.note(now_us - version)
            else:
                self.counts.told_earlier += 1
        # What is still open keeps its own time: an acknowledgement does not put it off.
        message = self._head(index) + b',"acks":' + _encoder.encode(told) + b"}"
        if self.states[index] == IN_SYNC:
            self._say(index, message, now_s)
        else:
            self._send_out(self.first + index, message)

    def _confirm(self, index: int, statuses: Sequence[_Status]) -> None:
        for status in statuses:
            place = self._places.of(self.first + index, status.object)
            if place >= 0 and status.state == REGISTERED:
                self._confirmed[index * self.plan.registrations + place] = 1
            elif status.state != REGISTERED:
                self.counts.errors[status.code or status.state] += 1
                self.counts.said = status.message or f"{status.object}: {status.state}"

    def _all_confirmed(self, index: int) -> bool:
        first = index * self.plan.registrations
        return 0 not in self._confirmed[first : first + self.plan.registrations]

    def _agrees(self, index: int, summary: _Summary | None) -> bool:
        return summary is not None and summary.count == self.plan.registrations and summary.digest == self._digest(index)

    # What it knows.

    def missing(self, latest: Sequence[int]) -> int:
        """Versions that were accepted and that a client in sync was not told of. `latest` is by object."""
        found = 0
        registrations = self.plan.registrations
        for index in range(self.count):
            if self.states[index] == IN_SYNC:
                first = index * registrations
                for place, number in enumerate(self.plan.objects_of(self.first + index)):
                    found += latest[number] > max(0, self.versions[first + place])
        return found
