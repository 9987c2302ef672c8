"""The TypeScript core answers what the Python core answers, to every input, whatever happens: in worlds where everything fails, and against
a server that says anything at any time.

Both cores get the same inputs and the same chance, one after the other (`stdio.Twin`). What the transcripts do not reach is reached here:
epochs that rise and fall, quiet periods, limits, buckets, names in every form, answers to questions that nobody asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any, Final

import pytest

from roskva.client.actions import CloseChannel, Notification, Notify, Send, WriteState
from roskva.errors import InvalidSetting, RoskvaError
from roskva.model import name_to_text
from roskva.protocol.messages import Config, CredentialState, ErrorReport, Grant, ServerMessage, StartAnew, Status, SyncRequest
from roskva.protocol.messages import Notify as Told
from roskva.protocol.summaries import SetDigest
from tests.clients.stdio import Node, Twin, TypescriptCore
from tests.properties import application
from tests.properties.test_promise import Promise, profile

INPUTS: Final = 400
NAMES: Final = [
    b"a",
    b"b",
    b"hello",
    "Röskva ☕".encode(),
    b"\xff\xfe",
    b"base64:x",
    b"line\n",
    "\u200d".encode(),
    b"\x00" * 128,
    b'"' * 128,
]
TEXTS: Final = [
    *["a", "b"] * 10,
    *map(name_to_text, NAMES),
    "base64:YQ",
    "base64:YR",
    "",
    "base64:",
    "x" * 129,
    "base64:A",
    "never wished for",
]
CREDENTIALS: Final = ["", "first", "second", "ö" * 8_192]
REASONS: Final = ["", "credential-required", "credential-required", "credential-refused", "credential-expired"]
CODES: Final = ["overloaded", "unavailable", "unknown-application", "of a later server"]


@pytest.fixture(scope="module", autouse=True)
def _worlds_have_twins(node: Node) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(application, "ClientCore", partial(Twin, node))
        yield


class Worlds(Promise):
    """Every client of these worlds is a pair of twins."""


TestWorlds = Worlds.TestCase
TestWorlds.settings = profile(8)


class Capricious:
    """A server, an application and a channel that do what chance says, and often enough what makes sense."""

    def __init__(self, node: Node, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 100.0
        nonces = count(1)
        self.nonce = ""
        self.token = ""
        self.epoch = 0
        self.state: bytes | None = None
        self.said: list[Any] = []
        self.closed = False
        self.shown: list[Notification] = []
        self.has: set[bytes] = set()
        self._new_nonce = lambda: f"nonce-{next(nonces)}"
        self._node = node
        self.begin()
        self.inputs: list[Callable[[], Any]] = [
            *[self.speaks] * 8, *[self.registers] * 3, *[self.time_passes] * 3, *[self.acknowledges] * 2, *[self.sensible] * 4,
            self.uses_a_credential, self.unregisters, self.gives_back, self.connects, self.disconnects, self.grants, self.ends,
        ]  # fmt: skip

    def begin(self) -> None:
        config = Config(operations_per_message_max=self.chance.choice([1, 3, 1000]), retry_max_s=self.chance.choice([2.0, 60.0]))
        random_, nonce = self.chance.random, self._new_nonce
        more = {"state": self.state, "config": config, "library": "twins", "credential": self.chance.choice(CREDENTIALS)}
        self.core = Twin(self._node, "demo", "phone", random=random_, nonce=nonce, **more)
        self.shown = []
        self.do(self.core.start(self.now))
        self.do(self.core.connected(self.now))

    def do(self, actions: list[Any]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.said.append(action.message)
                self.token = action.message.token or self.token
                self.nonce = action.message.init.nonce if action.message.init is not None else self.nonce
            elif isinstance(action, Notify):
                self.shown.append(action.notification)
            elif isinstance(action, WriteState):
                self.state = action.state
            elif isinstance(action, CloseChannel):
                self.closed = True

    def step(self) -> None:
        self.chance.choice(self.inputs)()
        self.asks()
        if self.core.stopped is not None:
            self.begin()
        elif self.closed and self.chance.random() < 0.7:
            self.connects()

    def asks(self) -> None:
        for ask in (self.core.in_sync, self.core.confirmed, self.core.alive):
            ask(self.now)
        self.core.next_deadline()

    def time_passes(self) -> None:
        deadline = self.core.next_deadline()
        if deadline is not None and self.chance.random() < 0.7:
            self.now = max(self.now, deadline)
        else:
            self.now += self.chance.choice([0.0, 0.3, 2.0, 61.0])
        self.do(self.core.tick(self.now))

    def registers(self) -> None:
        version = self.chance.choice([None, None, 0, 7, 2**63 - 1])
        epoch = 0 if version is None else self.chance.randrange(3)
        for name in self.chance.choice([NAMES[:2], NAMES[:2], NAMES, self.chance.sample(NAMES, 1)]):
            self.do(self.core.register(self.now, name, version, epoch))

    def unregisters(self) -> None:
        self.do(self.core.unregister(self.now, self.chance.choice(NAMES[:4]), self.chance.random() < 0.3))

    def acknowledges(self) -> None:
        forged = Notification(self.chance.choice(NAMES), self.chance.choice([None, 3, 2**63 - 1]), self.epoch, 5, self.chance.randrange(4))
        given = self.chance.sample(self.shown, min(len(self.shown), self.chance.randrange(4)))
        self.do(self.core.acknowledge(self.now, *given, *([forged] if self.chance.random() < 0.1 else [])))

    def uses_a_credential(self) -> None:
        self.do(self.core.use_credential(self.now, self.chance.choice(CREDENTIALS)))

    def gives_back(self) -> None:
        if self.shown:
            self.do(self.core.give_back(self.now, self.chance.choice(self.shown)))

    def ends(self) -> None:
        if self.chance.random() < 0.3:
            self.do(self.core.forget(self.now) if self.chance.random() < 0.7 else self.core.stop())

    def connects(self) -> None:
        self.closed = False
        self.do(self.core.connected(self.now))

    def disconnects(self) -> None:
        self.do(self.core.disconnected(self.now))
        self.closed = True

    def grants(self) -> None:
        token = f"token-{self.chance.randrange(1000)}"
        self.epoch = max(0, self.epoch + self.chance.choice([-1, 0, 0, 1]))
        config = Config(epoch=self.epoch) if self.chance.random() < 0.8 else None
        grant = Grant(nonce=self.nonce, token=token)
        judged = CredentialState(good_s=self.chance.choice([0.0, 30.0])) if self.chance.random() < 0.5 else None
        summary = SetDigest(self.has).summary() if self.chance.random() < 0.9 else None
        self.do(self.core.received(self.now, ServerMessage(token=token, grant=grant, config=config, summary=summary, credential=judged)))

    def sensible(self) -> None:
        """Answer an init; forget who wants it; else have what was stated, and confirm it; name the buckets that were asked for."""
        if self.said and self.said[-1].init is not None:
            self.grants()
            return
        if self.said and self.said[-1].forget:
            forgotten = StartAnew(code="token-invalid", keep=False)
            self.do(self.core.received(self.now, ServerMessage(token=self.token, start_anew=forgotten)))
            return
        wished = set(self.core.desired)
        changed, self.has = self.has ^ wished, wished
        state = {True: "registered", False: "unregistered"}
        status = [Status(object=name_to_text(name), state=state[name in wished]) for name in sorted(changed)]
        op = next((message.sync.op for message in reversed(self.said) if message.sync is not None), 0)
        request = SyncRequest(op=op, buckets=[1, 2, 44, 72]) if self.chance.random() < 0.2 else None
        summary = SetDigest(self.has).summary()
        self.do(self.core.received(self.now, ServerMessage(token=self.token, summary=summary, status=status, sync_request=request)))

    def speaks(self) -> None:
        """Anything that has the form of a message."""
        chance = self.chance

        def maybe(part: float, make: Callable[[], Any]) -> Any:
            return make() if chance.random() < part else None

        def some(part: float, make: Callable[[], Any]) -> list[Any]:
            return [make() for _ in range(3) if chance.random() < part]

        if chance.random() < 0.2:
            self.has = set(chance.sample(NAMES, chance.randrange(len(NAMES))))
        message = ServerMessage(
            token=chance.choice([self.token] * 8 + ["", "another"]),
            summary=maybe(0.8, lambda: SetDigest(self.has).summary()),
            unsettled=chance.choice([0, 0, 2]),
            time_ms=2**53 - 1,
            grant=maybe(0.05, lambda: Grant(nonce=chance.choice([self.nonce, "old"]), token="another")),
            start_anew=maybe(0.08, self.refusal),
            status=some(0.2, self.status),
            notify=some(0.4, self.notification),
            sync_request=maybe(0.2, lambda: SyncRequest(op=chance.randrange(4), buckets=chance.choice([None, [], [1, 44]]))),
            config=maybe(0.05, self.config),
            error=maybe(0.05, lambda: ErrorReport(code=chance.choice(CODES), message="no", retry_after_s=chance.choice([0.0, 2.5, 1e9]))),
            credential=maybe(0.2, self.judgement),
        )
        self.do(self.core.received(self.now, message))

    def refusal(self) -> StartAnew:
        code = self.chance.choice(["session-superseded", "token-invalid", "token-elsewhere"])
        return StartAnew(code=code, keep=self.chance.random() < 0.6, nonce=self.chance.choice(["", self.nonce]))

    def judgement(self) -> CredentialState:
        if self.chance.random() < 0.5:
            return CredentialState(good_s=self.chance.choice([0.0, 0.5, 30.0, 3600.0]))
        return CredentialState(wanted=True, code=self.chance.choice(REASONS), message="who?")

    def status(self) -> Status:
        state = self.chance.choice(["registered", "unregistered", "failed", "of a later protocol"])
        code = self.chance.choice(["x", "not-authorized"])
        return Status(object=self.chance.choice(TEXTS), state=state, transient=self.chance.random() < 0.5, code=code, message="y")

    def notification(self) -> Told:
        version = self.chance.choice([None, "0", str(self.chance.randrange(9)), str(2**63 - 1)])
        return Told(object=self.chance.choice(TEXTS), seqno=str(self.chance.randrange(6)), version=version, epoch=self.chance.randrange(3))

    def config(self) -> Config:
        chance = self.chance
        return Config(
            quiet_s=chance.choice([0.0, 5.0]),
            keepalive_s=chance.choice([-1.0, 50.0, 50.0]),
            heartbeat_s=chance.choice([0.0, 30.0]),
            heartbeat_smear=chance.choice([0.2, 9.0, -1.0]),
            retry_min_s=chance.choice([-1.0, 1.0, 3.0]),
            message_bytes_max=chance.choice([0, 6000, 1 << 20]),
        )


@pytest.mark.parametrize("seed", range(1, 17))
def test_both_answer_the_same_whatever_the_server_says(seed: int, node: Node) -> None:
    capricious = Capricious(node, seed)
    for _ in range(INPUTS):
        capricious.step()
    assert len(capricious.said) > INPUTS / 8
    assert any(message.credential for message in capricious.said)
    assert capricious.core.calls > 0


@pytest.mark.parametrize("registrations", [256, 257, 1200])
def test_both_state_many_registrations_by_buckets(registrations: int, node: Node) -> None:
    core = Twin(node, "demo", "phone", random=lambda: 0.5, nonce=lambda: "n", config=Config(operations_per_message_max=300))
    core.start(0.0)
    for number in range(registrations):
        core.register(0.0, b"object-%d" % number)
    core.connected(0.0)
    core.received(0.0, ServerMessage(token="t", grant=Grant(nonce="n", token="t"), summary=SetDigest().summary()))
    core.received(0.0, ServerMessage(token="t", start_anew=StartAnew(code="token-invalid", keep=False)))
    (stated,) = [
        one.message.sync
        for one in core.received(0.0, ServerMessage(token="u", grant=Grant(nonce="n", token="u"), summary=SetDigest().summary()))
        if isinstance(one, Send) and one.message.sync is not None
    ]
    assert (stated.summaries is None) == (registrations <= 256)
    answer = core.received(0.0, ServerMessage(token="u", sync_request=SyncRequest(op=stated.op, buckets=list(range(255, -1, -1)))))
    named = [bucket for one in answer for bucket in one.message.sync.buckets]
    assert named == ([] if registrations <= 256 else list(range(256)))


@pytest.mark.parametrize(
    "state", [b"", b"{}", b"[]", b"null", b'{"v":99,"application":"demo","device":"phone"}', b'{"v":1,"device":"phone"}']
)
def test_both_ignore_a_state_of_no_use(state: bytes, node: Node) -> None:
    assert Twin(node, "demo", "phone", random=lambda: 0.5, nonce=lambda: "n", state=state).start(0.0)


@pytest.mark.parametrize(("application", "device"), [("No Such Name", "phone"), ("demo", ""), ("demo", "ü" * 65), ("demo\n", "phone")])
def test_both_refuse_bad_arguments_by_the_same_name(application: str, device: str, node: Node) -> None:
    with pytest.raises(RoskvaError) as first:
        Twin(node, application, device, random=lambda: 0.5, nonce=lambda: "n")
    with pytest.raises(RoskvaError) as second:
        TypescriptCore(node, application, device, random=lambda: 0.5, nonce=lambda: "n")
    assert first.value.code == second.value.code


@pytest.mark.parametrize("text", ["x" * 8_193, "\U0001f600" * 8_193])
def test_both_refuse_a_credential_that_is_too_long_and_do_not_show_it(text: str, node: Node) -> None:
    core = Twin(node, "demo", "phone", random=lambda: 0.5, nonce=lambda: "n", credential=text[1:])
    for use in (core._first.use_credential, core._second.use_credential):
        with pytest.raises(InvalidSetting) as refused:
            use(0.0, text)
        assert text[:9] not in str(refused.value)


def test_both_show_a_credential_when_it_is_wanted_and_ask_for_another_in_time(node: Node) -> None:
    nonces = count(1)
    core = Twin(node, "demo", "phone", random=lambda: 0.5, nonce=lambda: f"n{next(nonces)}", credential="first")

    def hear(now: float, token: str = "T", **more: Any) -> list[Any]:
        answer: list[Any] = core.received(now, ServerMessage(token=token, **more))
        return [(one.message.credential or "-") if isinstance(one, Send) else type(one).__name__ for one in answer]

    def wanted(code: str) -> CredentialState:
        return CredentialState(wanted=True, code=code, message="no")

    summary = SetDigest().summary()
    core.start(0.0)
    (init,) = core.connected(0.0)
    assert init.message.credential == "first"
    assert hear(0.0, "", credential=wanted("credential-refused")) == ["CredentialWanted"]
    assert core.next_deadline() == 1.5
    assert core.tick(1.4) == []
    assert [one.message.credential for one in core.tick(1.5)] == ["first"]
    assert core.use_credential(1.5, "first") == []  # refused already: no sooner than the pause says
    assert [one.message.credential for one in core.use_credential(1.5, "second")] == ["second"]
    grant = Grant(nonce="n3", token="T")
    assert hear(1.5, summary=summary, grant=grant, credential=CredentialState(good_s=100.0)) == ["CredentialAccepted", "WriteState", "-"]
    assert core.in_sync(1.5)
    assert core.next_deadline() == 81.5
    assert [one.code for one in core.tick(81.5)] == ["credential-refresh"]
    assert hear(82.0, credential=wanted("credential-required")) == ["second"]  # not seen: shown again, and nobody told
    assert not core.alive(82.0)
    assert hear(82.0, credential=wanted("credential-expired")) == ["CredentialWanted"]
    assert hear(82.0, summary=summary, credential=CredentialState()) == ["CredentialAccepted"]
    assert core.in_sync(82.0)
