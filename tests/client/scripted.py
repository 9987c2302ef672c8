"""A client's core under a clock that the test moves, and a server that says what the test tells it to say."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from roskva.client.actions import Action, Notification, Notify, Send, StatusChanged
from roskva.client.core import ClientCore
from roskva.model import name_to_text
from roskva.protocol import messages
from roskva.protocol.messages import ClientMessage, Config, Grant, ServerMessage, StartAnew, Status
from roskva.protocol.summaries import SetDigest

CONFIG = Config(heartbeat_s=1200, keepalive_s=50, retry_min_s=1, retry_max_s=60)


class Bench:
    """`said` holds the messages that the client sent and the test has not looked at; `shown` and `actions` everything else."""

    def __init__(self, state: bytes | None = None, config: Config = CONFIG, dice: float = 0.5) -> None:
        self.now = 100.0
        self.dice = dice
        self.spoke = self.now  # when the server last said something by itself
        numbers = itertools.count(1)
        self.core = ClientCore(
            "demo", "phone", random=lambda: self.dice, nonce=lambda: f"nonce-{next(numbers)}", state=state, config=config
        )
        self.token = "token-1"
        self.has: set[bytes] = set()  # what the scripted server has
        self.unsettled = 0
        self.said: list[ClientMessage] = []
        self.actions: list[Action] = []

    def do(self, actions: Iterable[Action]) -> list[Action]:
        done = list(actions)
        for action in done:
            if isinstance(action, Send):
                self.said.append(messages.decode_client(messages.encode(action.message), 1 << 20))
            else:
                self.actions.append(action)
        return done

    def start(self) -> None:
        self.do(self.core.start(self.now))
        self.do(self.core.connected(self.now))

    def say(self, **fields: object) -> list[Action]:
        """A message of the server, with token and summary unless given otherwise."""
        given: dict[str, object] = {
            "token": self.token,
            "summary": SetDigest(self.has).summary(),
            "unsettled": self.unsettled,
            **fields,
        }
        message = messages.decode_server(messages.encode(ServerMessage(**given)))  # type: ignore[arg-type]  # decoding checks them
        return self.do(self.core.received(self.now, message))

    def grant(self, token: str = "token-1", **fields: object) -> list[Action]:
        """Answer the last init that the client sent."""
        nonce = next(message.init.nonce for message in reversed(self.said) if message.init is not None)
        self.token = token
        return self.say(token=token, grant=Grant(nonce=nonce, token=token), **fields)

    def live(self) -> Bench:
        """Started, granted, quiet: nothing waits to be looked at."""
        self.start()
        self.grant()
        self.said.clear()
        self.actions.clear()
        return self

    def register(self, *names: bytes) -> None:
        for name in names:
            self.do(self.core.register(self.now, name))

    def registered(self, *names: bytes) -> None:
        """Wish for these, and have the server confirm them."""
        self.register(*names)
        self.has.update(names)
        self.say(status=[status(name) for name in names])
        self.said.clear()
        self.actions.clear()

    def notify(self, name: bytes, version: int | None, seqno: int = 1, epoch: int = 0) -> list[Action]:
        return self.say(notify=[notification(name, version, seqno, epoch)])

    def anew(self, code: str = "token-invalid", keep: bool = False, **fields: str) -> list[Action]:
        token = fields.pop("token", self.token)
        return self.say(token=token, summary=None, start_anew=StartAnew(code=code, keep=keep, **fields))

    def pass_time(self, seconds: float, keepalives: bool = True) -> None:
        """Let time go by, with a tick at each deadline and, unless told otherwise, the server's keepalives."""
        end = self.now + seconds
        for _ in range(10_000):
            deadline = self.core.next_deadline()
            keepalive = max(self.now, self.spoke + 40) if keepalives else end + 1
            step = min(end, keepalive, end if deadline is None else max(deadline, self.now))
            if step >= end and keepalive > end and (deadline is None or deadline > end):
                break
            self.now = step
            if step == keepalive:
                self.spoke = step
                self.say()
            self.do(self.core.tick(self.now))
        else:
            raise AssertionError("the core wants to be called without end")
        self.now = end

    def take_said(self) -> list[ClientMessage]:
        said, self.said = self.said, []
        return said

    def shown(self) -> list[Notification]:
        return [action.notification for action in self.actions if isinstance(action, Notify)]

    def statuses(self) -> list[tuple[bytes, bool]]:
        return [(action.name, action.registered) for action in self.actions if isinstance(action, StatusChanged)]


def status(name: bytes, state: str = messages.REGISTERED, transient: bool = False, code: str = "", message: str = "") -> Status:
    return Status(object=name_to_text(name), state=state, transient=transient, code=code, message=message)


def notification(name: bytes, version: int | None, seqno: int = 1, epoch: int = 0) -> messages.Notify:
    text = None if version is None else str(version)
    return messages.Notify(object=name_to_text(name), seqno=str(seqno), version=text, epoch=epoch)
