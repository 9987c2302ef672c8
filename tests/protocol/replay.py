"""Replays a transcript of docs/transcripts: the real client core against the real Registrar and Matcher cores.

A transcript has four kinds of lines, and comments (#). `>` says what happens: the application, the backend, the network. `C:` and
`S:` are the messages that client and server then exchange, `A:` is what the client tells its application. Replaying obeys the `>`
lines and answers what was said, line by line. Tokens are written as TOKEN-1, TOKEN-2 and so on in the order in which they were
granted; long lists are shortened to their first two elements and their last.

`python -m tests.protocol.replay` writes the transcripts anew, keeping comments and `>` lines.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from roskva.client import actions
from roskva.client.core import ClientCore
from roskva.model import ClientId, Update, name_from_text, object_key
from roskva.protocol.messages import ClientMessage, Config, Init, ServerMessage, decode_client, decode_server, encode
from roskva.testing.joined import Server

TRANSCRIPTS = Path(__file__).parents[2] / "docs" / "transcripts"
SHOWN_MAX = 6
MESSAGE_BYTES_MAX = 1 << 20
_STEP_S = 0.25


@dataclass
class Replay:
    said: list[str] = field(default_factory=list)
    messages: list[tuple[str, ClientMessage | ServerMessage]] = field(default_factory=list)
    server: Server = field(default_factory=Server)
    client: ClientCore | None = None
    state: bytes | None = None
    now_s: float = 0.0
    busy: bool = False
    shown_max: int = SHOWN_MAX  # longer lists are shortened
    _connected: bool = False
    _to_server: deque[ClientMessage] = field(default_factory=deque)
    _channel: list[ServerMessage] = field(default_factory=list)
    _tokens: dict[str, str] = field(default_factory=dict)
    _nonces: int = 0
    _handed: list[actions.Notification] = field(default_factory=list)

    def obey(self, directive: str) -> None:
        for pattern, deed in _DIRECTIVES.items():
            words = re.fullmatch(pattern, directive)
            if words is not None:
                before = len(self.said)
                deed(self, **words.groupdict())
                self._settle()
                self.said[before:] = _shortened_lines(self.said[before:], self.shown_max)
                return
        raise ValueError(f"a transcript cannot say: {directive}")

    def _settle(self) -> None:
        """Until nothing more happens without time or input. The network is in order and loses nothing."""
        for _ in range(1000):
            if self._to_server:
                message = self._to_server.popleft()
                self._say("C", message)
                self.server.receive(self._channel, message)
            elif self._channel:
                answer = self._channel.pop(0)
                self._learn_token(answer)
                self._say("S", answer)
                assert self.client is not None
                self._act(self.client.received(self.now_s, answer))
            elif not self.server.work():
                return
        raise AssertionError("client and server talk without end")

    def _learn_token(self, message: ServerMessage) -> None:
        if message.grant is not None:
            self._tokens.setdefault(message.grant.token, f"TOKEN-{len(self._tokens) + 1}")

    def _say(self, who: str, message: ClientMessage | ServerMessage) -> None:
        text = encode(message).decode()
        for token, name in self._tokens.items():
            text = text.replace(token, name)
        self.messages.append((who, message))
        self.said.append(f"{who}: {json.dumps(_shortened(json.loads(text), self.shown_max), ensure_ascii=False)}")

    def _act(self, done: list[actions.Action]) -> None:
        assert self.client is not None
        for action in done:
            if isinstance(action, actions.Send):
                if self._connected:
                    self._to_server.append(action.message)
                continue
            self.said.append(f"A: {_told(action)}")
            if isinstance(action, actions.WriteState):
                self.state = action.state
            elif isinstance(action, actions.CloseChannel):
                self.disconnect()
            elif isinstance(action, actions.Notify):
                self._handed.append(action.notification)
        if not self.busy and self._handed:
            handed, self._handed = self._handed, []
            self._act(self.client.acknowledge(self.now_s, *handed))

    def start(self, state: str = "") -> None:
        kept = None if state == "without a state" else self.state
        self.client = ClientCore("demo", "phone", random=lambda: 0.5, nonce=self._nonce, state=kept)
        self._handed = []
        self._act(self.client.start(self.now_s))
        self.connect()

    def _nonce(self) -> str:
        self._nonces += 1
        return f"nonce-{self._nonces}"

    def connect(self) -> None:
        assert self.client is not None
        self._channel = []
        self._connected = True
        self._act(self.client.connected(self.now_s))

    def disconnect(self) -> None:
        """The gateway notices at once: the session is offline."""
        assert self.client is not None
        self._connected = False
        for client, session in list(self.server.sessions.items()):
            if session.channel is self._channel:
                del self.server.sessions[client]
        self._channel = []
        self._to_server.clear()
        self._act(self.client.disconnected(self.now_s))

    def stop(self) -> None:
        assert self.client is not None
        self._act(self.client.stop())
        self.client = None

    def register(self, name: str, version: str | None = None, epoch: str | None = None) -> None:
        assert self.client is not None
        held = None if version is None else int(version)
        self._act(self.client.register(self.now_s, name_from_text(name), held, int(epoch or 0)))

    def register_many(self, first: str, last: str) -> None:
        assert self.client is not None
        for number in range(int(first), int(last) + 1):
            self._act(self.client.register(self.now_s, b"object-%d" % number))

    def unregister(self, name: str) -> None:
        assert self.client is not None
        self._act(self.client.unregister(self.now_s, name_from_text(name)))

    def publish(self, name: str, version: str, source: str | None = None) -> None:
        key = object_key("demo", self.server.epoch("demo"), name_from_text(name))
        self.server.feed.append(Update(key, int(version), source or ""))

    def be_busy(self) -> None:
        self.busy = True

    def be_done(self) -> None:
        assert self.client is not None
        self.busy = False
        self._act([])

    def wait(self, seconds: str) -> None:
        until_s = self.now_s + float(seconds)
        while self.now_s < until_s:
            self.now_s = self.server.now_s = min(until_s, self.now_s + _STEP_S)
            self.server.tick()
            if self.client is not None:
                deadline = self.client.next_deadline()
                if deadline is not None and deadline <= self.now_s:
                    self._act(self.client.tick(self.now_s))
            self._settle()

    def sign_out(self) -> None:
        assert self.client is not None
        self._act(self.client.forget(self.now_s))

    def clone(self) -> None:
        """Another process with a copy of the state: it handshakes and speaks, on a connection that is not shown."""
        assert self.state is not None
        prior = json.loads(self.state)["token"]
        channel: list[ServerMessage] = []
        init = ClientMessage(init=_init("nonce-of-the-clone", prior))
        self.server.receive(channel, init)
        token = channel[-1].token
        self._tokens.setdefault(token, f"TOKEN-{len(self._tokens) + 1}")
        self.server.receive(channel, ClientMessage(token=token, summary=channel[-1].summary))

    def collect(self, client: str) -> None:
        self.server.forget(ClientId(client))

    def ask_in_sync(self) -> None:
        assert self.client is not None
        self.said.append(f"A: in_sync: {'yes' if self.client.in_sync(self.now_s) else 'no'}")

    def configure(self, name: str, value: str) -> None:
        settings = json.loads(encode(ServerMessage(config=self.server.config)))["config"]
        self.server.config = _config({**settings, name: json.loads(value)})
        if name == "registrations_max":
            self.server.registrations_max = int(value)


_DIRECTIVES: dict[str, Callable[..., None]] = {
    r"the application starts(?: (?P<state>without a state))?": lambda self, state: self.start(state or ""),
    r"the application ends": Replay.stop,
    r"the application signs out": Replay.sign_out,
    r"register (?P<name>\S+)(?:, holding version (?P<version>\d+)(?: of epoch (?P<epoch>\d+))?)?": Replay.register,
    r"register object-(?P<first>\d+) to object-(?P<last>\d+)": Replay.register_many,
    r"unregister (?P<name>\S+)": Replay.unregister,
    r"publish (?P<name>\S+) version (?P<version>\d+)(?: by (?P<source>\S+))?": Replay.publish,
    r"the application is busy": Replay.be_busy,
    r"the application is done": Replay.be_done,
    r"the connection breaks": Replay.disconnect,
    r"the client connects again": Replay.connect,
    r"(?P<seconds>[0-9.]+) s pass": Replay.wait,
    r"another process starts with a copy of the state": Replay.clone,
    r"the service has collected (?P<client>\S+)": Replay.collect,
    r"in sync\?": Replay.ask_in_sync,
    r"the service is configured with (?P<name>\w+) (?P<value>\S+)": Replay.configure,
}


def _init(nonce: str, prior: str) -> Init | None:
    return decode_client(
        json.dumps({"init": {"nonce": nonce, "application": "demo", "device": "phone", "prior": prior}}).encode(), 1 << 20
    ).init


def _config(settings: dict[str, object]) -> Config:
    config = decode_server(json.dumps({"config": settings}).encode()).config
    assert config is not None
    return config


def _shortened(value: object, shown_max: int) -> object:
    if isinstance(value, dict):
        return {name: _shortened(one, shown_max) for name, one in value.items()}
    if isinstance(value, list):
        if len(value) > shown_max:
            return [value[0], value[1], f"... {len(value) - 3} more ...", value[-1]]
        return [_shortened(one, shown_max) for one in value]
    return value


def _shortened_lines(lines: list[str], shown_max: int) -> list[str]:
    """Long runs of callbacks of one kind are shortened too."""
    short: list[str] = []
    for _, run in groupby(lines, key=lambda line: line.split(":")[:2] if line.startswith("A: ") else [line]):
        same = list(run)
        short += same if len(same) <= shown_max else [same[0], same[1], f"A: ... {len(same) - 3} more ...", same[-1]]
    return short


def _told(action: actions.Action) -> str:
    match action:
        case actions.Notify(notification):
            version = "unknown" if notification.version is None else f"version {notification.version}"
            return f"notify: {notification.object}, {version}"
        case actions.StatusChanged(name, registered):
            return f"status: {name.decode()} is {'registered' if registered else 'unregistered'}"
        case actions.RegistrationFailed(name, transient, code, _):
            return f"failure: {name.decode()}, {code}, {'transient' if transient else 'permanent'}"
        case actions.ReissueRegistrations():
            return "reissue_registrations"
        case actions.WriteState(state):
            return "write_state" if json.loads(state)["token"] else "write_state: no token"
        case actions.Stopped(error):
            return f"stopped: {error.code}"
        case actions.Reported(code, _, transient):
            return f"reported: {code}, {'transient' if transient else 'permanent'}"
        case _:
            return "close the connection"


def steps(text: str) -> Iterator[tuple[str, list[str]]]:
    """The `>` lines of a transcript, each with the lines that answer it."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines, "a transcript without lines"
    assert lines[0].startswith("> "), "a transcript begins with what happens"
    directive = lines[0][2:]
    answer: list[str] = []
    for line in lines[1:]:
        if line.startswith("> "):
            yield directive, answer
            directive, answer = line[2:], []
        else:
            answer.append(line)
    yield directive, answer


def replayed(text: str, shown_max: int = SHOWN_MAX) -> str:
    """The same transcript, with what is said today."""
    replay, kept = Replay(shown_max=shown_max), []
    for line in text.splitlines():
        if line.startswith(("C: ", "S: ", "A: ")):
            continue
        kept.append(line)
        if line.startswith("> "):
            replay.said.clear()
            replay.obey(line[2:])
            kept += replay.said
    return "\n".join(kept) + "\n"


def rewrite(path: Path) -> None:
    path.write_text(replayed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    for path in sorted(TRANSCRIPTS.glob("*.txt")):
        rewrite(path)
        print(path.name)
