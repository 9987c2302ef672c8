"""Plays the client's side of a transcript against a server, and compares what the server says (docs/conformance.md).

What is compared is what is said, not how it is packed: a server may put several things into one message or into many, repeat
itself, and say more than it must. Knows no network: `House` is the service, `Line` one connection to it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, Protocol

import msgspec

from roskva.conformance import transcripts as script
from roskva.conformance.heard import Heard, notified, stated
from roskva.conformance.outcome import Difference, NotPlayed
from roskva.conformance.transcripts import Deed, Transcript, Wishes
from roskva.errors import MalformedMessage
from roskva.model import name_from_text, name_to_text
from roskva.protocol.messages import (
    REGISTERED,
    Ack,
    ClientMessage,
    Config,
    Init,
    Register,
    ServerMessage,
    Summary,
    Sync,
    SyncObject,
    decode_server,
    encode,
)
from roskva.protocol.summaries import SetDigest, bucket_of, bucket_summaries

_LEAVING_S: Final = 3.0
_LEAVING_TRIES: Final = 3
_LEAVING_MESSAGES_MAX: Final = 100
_LAST_OP: Final = 2**40  # above all that a transcript uses
_NOT_NEEDED: Final = {"heartbeat_s"}  # the player keeps to the transcript's, whatever it is told


class Line(Protocol):
    async def send(self, data: bytes) -> None: ...

    async def receive(self, timeout_s: float) -> bytes | None:
        """The next message; None if none came in this time. Raises Difference if the connection ended."""

    async def close(self) -> None: ...


class House(Protocol):
    application: str
    patience_s: float  # for what must come
    quiet_s: float  # at the end, for what must not

    def now_s(self) -> float: ...

    async def connect(self) -> Line: ...

    async def publish(self, name: str, version: int, source: str) -> None:
        """Returns when the service knows this version."""

    async def configure(self, name: str, value: str) -> None: ...


class Player:
    """One transcript, with names, device and nonces of its own, so that it disturbs nobody."""

    def __init__(self, transcript: Transcript, house: House, run: str) -> None:
        self._transcript = transcript
        self._house = house
        number = transcript.name.partition("-")[0]
        self._prefix = f"conformance/{run}/{number}/"
        self._device = f"conformance-{run}-{number}"
        self._wishes = Wishes()
        self._line: Line | None = None
        self._tokens: dict[str, str] = {}  # by what the transcript calls them
        self._current = ""  # the token in use
        self._newest = ""  # the one that was granted last, if to another process of the same client
        self._nonces: dict[str, str] = {}
        self._seqnos: dict[int, int] = {}
        self._epoch = 0
        self._buckets: set[int] = set()  # in which the two sides differ
        self._stated: frozenset[str] | None = None  # by a sync of buckets
        self._pool: list[Heard] = []  # heard, and not yet asked for
        self._asked: set[Heard] = set()  # heard and asked for
        self._registering: set[str] = set()  # in this step: what they yield must come before they are confirmed
        self._acked: set[Ack] = set()
        self._again: list[Ack] = []  # acknowledged before, and told again
        self._summary = _summary(())  # what the client said last of its registrations
        self._answers = 0
        self._latest: ServerMessage | None = None

    async def play(self) -> None:
        """Raises Difference, with what the server said otherwise; NotPlayed if the service is not such that it can be played."""
        deed = self._transcript.steps[0].deed
        try:
            for step in self._transcript.steps:
                deed = step.deed
                await self._obey(deed)
                await self._talk(step.lines, deed)
            if self._line is not None:
                await self._listen(self._house.quiet_s)
            self._nothing_else()
        except Difference as difference:
            raise Difference(f"after `{deed.text}`: {difference}") from None
        finally:
            await self._leave()

    # What happens.

    async def _obey(self, deed: Deed) -> None:
        self._wishes.follow(deed)
        words = deed.words
        if deed.kind in (script.START, script.CONNECT):
            await self._hang_up()
            self._line = await self._house.connect()
        elif deed.kind in (script.END, script.BREAK):
            await self._hang_up()
        elif deed.kind == script.PUBLISH:
            source = self._device if words.get("source") else ""
            await self._house.publish(self._text(name_from_text(words["name"])), int(words["version"]), source)
        elif deed.kind == script.CLONE:
            await self._clone()
        elif deed.kind == script.COLLECT:
            await self._elsewhere(ClientMessage(token=self._current, summary=_summary(()), forget=True))
        elif deed.kind == script.CONFIGURE:
            await self._house.configure(words["name"], words["value"])

    async def _clone(self) -> None:
        """Another process with this client's state: its grant takes effect, and this session is superseded."""
        init = Init(nonce=secrets.token_hex(8), application=self._house.application, device=self._device, prior=self._current)
        line = await self._house.connect()
        try:
            answer = await self._exchange(line, ClientMessage(init=init, summary=_summary(())))
            if answer.grant is None:
                raise Difference("a second start of the same client was not granted")
            self._tokens[f"TOKEN-{len(self._tokens) + 1}"] = self._newest = answer.grant.token
            await self._exchange(line, ClientMessage(token=answer.grant.token, summary=_summary(())))
        finally:
            await line.close()

    async def _elsewhere(self, message: ClientMessage) -> None:
        line = await self._house.connect()
        try:
            await self._exchange(line, message)
        finally:
            await line.close()

    async def _exchange(self, line: Line, message: ClientMessage) -> ServerMessage:
        await line.send(encode(message))
        data = await line.receive(self._house.patience_s)
        if data is None:
            raise Difference(f"no answer within {self._house.patience_s:g} s to {encode(message).decode()}")
        return _decoded(data)

    # What is said.

    async def _talk(self, lines: Sequence[ClientMessage | ServerMessage], deed: Deed) -> None:
        waits_s = float(deed.words["seconds"]) if deed.kind == script.WAIT else 0.0
        beat = False
        self._registering.clear()
        for kind, group in groupby(lines, key=type):
            if kind is ClientMessage:
                for message in group:
                    assert isinstance(message, ClientMessage)
                    beat = message == ClientMessage(token=message.token, summary=message.summary)
                    assert self._line is not None
                    self._answers = 0
                    said = self._actual(message)
                    listed = said.sync.objects or [] if said.sync is not None else []
                    self._registering |= {one.object for one in said.register} | {one.object for one in listed}
                    await self._line.send(encode(said))
            else:
                shown = [one for one in group if isinstance(one, ServerMessage)]
                long_wait = waits_s > script.SLOW_S
                answers = len(shown) if long_wait else int(beat)
                await self._expect(shown, answers, waits_s)
                self._answers = 0
        if waits_s and not lines and self._line is not None:
            await self._listen(waits_s)

    def _actual(self, message: ClientMessage) -> ClientMessage:
        """The transcript's message with this run's names, tokens, numbers and summaries."""
        assert message.summary is not None
        names = self._set(message.summary)
        if message.init is not None:
            if message.init.prior is None:
                self._seqnos.clear()  # a new client counts anew
                self._acked.clear()
            nonce = self._nonces[message.init.nonce] = secrets.token_hex(8)
            prior = None if message.init.prior is None else self._tokens[message.init.prior]
            init = Init(nonce=nonce, application=self._house.application, device=self._device, prior=prior)
            return ClientMessage(summary=_summary(map(self._name, names)), init=init)
        self._current = self._tokens[message.token]
        self._summary = _summary(map(self._name, names))
        acks = [self._ack(one) for one in message.acks]
        self._acked.update(acks)
        return msgspec.structs.replace(
            message,
            token=self._current,
            summary=self._summary,
            register=[self._register(one) for one in message.register],
            unregister=[msgspec.structs.replace(one, object=self._renamed(one.object)) for one in message.unregister],
            acks=acks,
            sync=None if message.sync is None else self._sync(message.sync, names),
        )

    def _register(self, one: Register) -> Register:
        epoch = self._epoch if one.version is not None else 0
        return msgspec.structs.replace(one, object=self._renamed(one.object), epoch=epoch)

    def _ack(self, one: Ack) -> Ack:
        seqno = str(self._seqnos.get(int(one.seqno), int(one.seqno)))
        return msgspec.structs.replace(one, object=self._renamed(one.object), seqno=seqno, epoch=self._epoch)

    def _sync(self, sync: Sync, names: frozenset[bytes]) -> Sync:
        actual = [self._name(name) for name in sorted(names)]
        if sync.summaries is not None:
            return Sync(op=sync.op, summaries=bucket_summaries(actual))
        if sync.buckets is None:
            assert sync.objects is not None
            return Sync(op=sync.op, objects=[SyncObject(object=self._renamed(one.object)) for one in sync.objects])
        buckets = self._buckets
        self._stated = frozenset(name_to_text(name) for name in actual if bucket_of(name) in buckets)
        return Sync(op=sync.op, objects=[SyncObject(object=text) for text in sorted(self._stated)], buckets=sorted(buckets))

    async def _expect(self, shown: list[ServerMessage], answers: int, waits_s: float) -> None:
        """All that these lines say must have been said, before or now; and then the last one's summary must hold."""
        wanted = [one for message in shown for one in self._wanted(message)]
        last = shown[-1]
        deadline_s = self._house.now_s() + self._house.patience_s + waits_s
        while True:
            wanted = [one for one in wanted if not self._take(one)]
            if not wanted and self._answers >= answers and self._holds(last):
                break
            left_s = deadline_s - self._house.now_s()
            assert self._line is not None
            data = await self._line.receive(left_s) if left_s > 0 else None
            if data is None:
                raise Difference(self._missing(wanted, last))
            self._hear(data, wanted)
            await self._acknowledge_again()
        for one in self._pool:
            if one.what == "start_anew":
                raise Difference(f"the server said: {one}")

    def _wanted(self, message: ServerMessage) -> Iterator[tuple[Heard, int]]:
        """What a line of the transcript says, in actual names, with the transcript's own seqno."""
        if message.grant is not None:
            yield Heard("grant", code=message.grant.nonce, state=message.grant.token), 0
        if message.start_anew is not None:
            yield Heard("start_anew", code=message.start_anew.code, flag=message.start_anew.keep), 0
        for notify in message.notify:
            yield notified(notify, self._renamed(notify.object)), int(notify.seqno)
        for status in message.status:
            text = self._renamed(status.object)
            if self._stated is None or text in self._stated or name_from_text(status.object) not in self._wishes.names:
                yield stated(status, text), 0
        if message.sync_request is not None and message.sync_request.buckets is not None:
            yield Heard("buckets", buckets=tuple(sorted(self._differing(message)))), 0

    def _differing(self, message: ServerMessage) -> set[int]:
        assert message.summary is not None
        theirs, mine = self._set(message.summary), frozenset(self._wishes.names)
        self._buckets = {bucket_of(self._name(name)) for name in theirs ^ mine}
        return self._buckets

    def _take(self, wanted: tuple[Heard, int]) -> bool:
        """Whether it was heard. If so it is no longer in the pool, and its numbers are learned."""
        fact, seqno = wanted
        for heard in self._pool:
            if heard.what != fact.what:
                continue
            if fact.what == "grant":
                if heard.code != self._nonces[fact.code]:
                    continue
                self._tokens[fact.state] = self._current = heard.state
            elif fact.what == "notify":
                if heard._replace(seqno=0) != fact._replace(seqno=0) or not self._fits(seqno, heard.seqno):
                    continue
            elif heard != fact:
                continue
            self._pool.remove(heard)
            self._asked.add(heard)
            return True
        return False

    def _fits(self, shown: int, actual: int) -> bool:
        """The same seqno where the transcript has the same, a greater one where it has a greater one."""
        if shown in self._seqnos:
            return self._seqnos[shown] == actual
        if any((shown < other) != (actual < number) or actual == number for other, number in self._seqnos.items()):
            return False
        self._seqnos[shown] = actual
        return True

    def _hear(self, data: bytes, wanted: Sequence[tuple[Heard, int]] = ()) -> None:
        message = _decoded(data)
        if message.error is not None:
            raise Difference(f"the server refused a message: {message.error.code}, {message.error.message}")
        if message.start_anew is not None:
            if message.token in ("", self._current):
                self._pool.append(Heard("start_anew", code=message.start_anew.code, flag=message.start_anew.keep))
                self._answers += 1
            return
        if message.grant is not None:
            if message.config is None:
                raise Difference("a grant came without config")
            if message.token != message.grant.token:
                raise Difference("the message with a grant does not carry the granted token")
            self._epoch, self._newest = message.config.epoch, message.grant.token
            self._check_config(message.config)
            self._pool.append(Heard("grant", code=message.grant.nonce, state=message.grant.token))
        elif message.token not in self._tokens.values():
            raise Difference(f"a message carries a token that was never granted: {message.token[:40]!r}")
        elif message.token != self._current:
            return  # of an earlier session: a client ignores it
        self._check(message)
        self._pool += [notified(one, one.object) for one in message.notify]
        came = [Ack(object=one.object, seqno=one.seqno, version=one.version, epoch=one.epoch) for one in message.notify]
        self._again += [ack for ack in came if ack in self._acked]
        for status in message.status:
            owed = any(fact.what == "notify" and fact.object == status.object for fact, _ in wanted)
            sent = any(one.what == "notify" and one.object == status.object for one in self._pool)
            if status.state == REGISTERED and status.object in self._registering and owed and not sent:
                raise Difference(f"{status.object} was confirmed before what the registration yields was sent")
            self._pool.append(stated(status, status.object))
        if message.sync_request is not None and message.sync_request.buckets is not None:
            self._pool.append(Heard("buckets", buckets=tuple(sorted(message.sync_request.buckets))))
        self._latest = message
        self._answers += 1

    def _check_config(self, config: Config) -> None:
        for name, value in self._transcript.configured.items():
            if name not in _NOT_NEEDED and str(getattr(config, name)) != value:
                raise NotPlayed(f"needs a service whose config says {name} {value}; this one says {getattr(config, name)}")

    def _check(self, message: ServerMessage) -> None:
        if message.summary is None:
            raise Difference("a message of the session has no summary")
        if message.time_ms <= 0:
            raise Difference("a message of the session has no time_ms")
        for notify in message.notify:
            if notify.epoch != self._epoch:
                raise Difference(f"a notification of {notify.object} has the epoch {notify.epoch}, and config says {self._epoch}")

    def _holds(self, shown: ServerMessage) -> bool:
        """The server's last word on its registrations is the transcript's."""
        if shown.summary is None:
            return True
        if self._latest is None:
            return False
        settled = shown.unsettled > 0 or self._latest.unsettled == 0
        return settled and self._latest.summary == _summary(map(self._name, self._set(shown.summary)))

    def _missing(self, wanted: Sequence[tuple[Heard, int]], last: ServerMessage) -> str:
        within = f"within {self._house.patience_s:g} s"
        if wanted:
            instead = "; ".join(str(one) for one in self._pool[:5]) or "nothing that was not asked for"
            more = f" (and {len(wanted) - 1} more)" if len(wanted) > 1 else ""
            return f"expected {within}: {wanted[0][0]}{more}\nheard instead: {instead}"
        if self._holds(last):
            return f"expected an answer {within}"
        latest = "nothing" if self._latest is None else f"{self._latest.summary}, unsettled {self._latest.unsettled}"
        assert last.summary is not None
        said = _summary(map(self._name, self._set(last.summary)))
        return f"expected {within}: {said}{'' if last.unsettled else ', unsettled 0'}\nthe last message says: {latest}"

    async def _listen(self, seconds: float) -> None:
        until_s = self._house.now_s() + seconds
        while self._line is not None and (left_s := until_s - self._house.now_s()) > 0:
            data = await self._line.receive(left_s)
            if data is not None:
                self._hear(data)
                await self._acknowledge_again()

    async def _acknowledge_again(self) -> None:
        """As any client does with what it is told again: the first acknowledgement may be lost, or too early."""
        acks, self._again = self._again, []
        if acks and self._line is not None:
            await self._line.send(encode(ClientMessage(token=self._current, summary=self._summary, acks=acks)))

    def _nothing_else(self) -> None:
        """What came beyond the transcript must be a repeat of what is in it."""
        states = {(one.object, one.state) for one in self._asked if one.what == "status"}
        for one in self._pool:
            known = one in self._asked or one.what in ("grant", "buckets")
            if not known and not (one.what == "status" and (one.object, one.state) in states | self._standing()):
                raise Difference(f"the server said what is not in the transcript: {one}")

    def _standing(self) -> set[tuple[str, str]]:
        return {(self._text(name), REGISTERED) for name in self._wishes.names}

    # Names.

    def _name(self, name: bytes) -> bytes:
        return self._prefix.encode() + name

    def _text(self, name: bytes) -> str:
        return name_to_text(self._name(name))

    def _renamed(self, text: str) -> str:
        return self._text(name_from_text(text))

    def _set(self, summary: Summary) -> frozenset[bytes]:
        names = self._wishes.of(summary.digest)
        assert names is not None, "a transcript's summaries are of sets that its application wished for"
        return names

    # The end.

    async def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    async def _leave(self) -> None:
        """Leave nothing behind: whatever is registered is unregistered, and the client deleted. If that fails, it is collected one day."""
        try:
            if self._newest:
                if self._line is None:
                    self._line = await self._house.connect()
                nothing = _summary(())
                sync = Sync(op=_LAST_OP, objects=[])
                await self._line.send(encode(ClientMessage(token=self._newest, summary=nothing, sync=sync)))
                await self._until(lambda message: message.summary == nothing and message.unsettled == 0)
                for _ in range(_LEAVING_TRIES):
                    await self._line.send(encode(ClientMessage(token=self._newest, summary=nothing, forget=True)))
                    if await self._until(lambda message: message.start_anew is not None):
                        break
        except Difference:
            pass  # the server has shown that it is otherwise
        finally:
            await self._hang_up()

    async def _until(self, enough: Callable[[ServerMessage], bool]) -> bool:
        """Whether something that is enough was said to the newest session within a few seconds."""
        until_s = self._house.now_s() + _LEAVING_S
        for _ in range(_LEAVING_MESSAGES_MAX):
            left_s = until_s - self._house.now_s()
            data = await self._line.receive(left_s) if self._line is not None and left_s > 0 else None
            if data is None:
                return False
            message = _decoded(data)
            if message.token == self._newest and (message.start_anew is not None or enough(message)):
                return True
        return False


def _summary(names: Iterable[bytes]) -> Summary:
    return SetDigest(names).summary()


def _decoded(data: bytes) -> ServerMessage:
    try:
        return decode_server(data)
    except MalformedMessage as error:
        raise Difference(f"{error.what} It was: {data[:300].decode(errors='replace')}") from None
