"""Where messages go, by the router alone: what a late repeat must not change."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from roskva.config import Settings
from roskva.gateway.routing import Party, Router
from roskva.model import ClientId
from roskva.protocol.internal import Closed, Forward, Frame
from roskva.protocol.messages import ClientMessage, Init, encode
from roskva.protocol.tokens import Claims, Keyring
from roskva.registrar.members import Member, MemberView, member_cell
from roskva.registrar.sessions import Channel
from roskva.telemetry.metrics import Metrics

KEYRING = Keyring({1: b"k" * 32})


@dataclass
class Desk:
    """A Registrar that notes what it is given."""

    received: list[tuple[ClientMessage, Claims | None]] = field(default_factory=list)

    def receive(self, channel: Channel, message: ClientMessage, claims: Claims | None) -> None:
        self.received.append((message, claims))

    def announce(self, channel: Channel, claims: Claims, token: str) -> None: ...
    def closed(self, channel: Channel) -> None: ...
    def members_changed(self) -> None: ...


@dataclass
class Wires:
    sent: list[tuple[str, Frame]] = field(default_factory=list)

    def send(self, member: str, frame: Frame) -> bool:
        self.sent.append((member, frame))
        return True


class End:
    """A client's connection."""

    def __init__(self) -> None:
        self.number = 0
        self.token = ""
        self.owner: str | None = None
        self.malformed = 0
        self.session: object | None = None
        self.address = ""
        self.party = Party("", "")

    def send(self, data: bytes) -> None: ...
    def close(self, code: str) -> None: ...


async def test_a_late_repeat_of_an_init_goes_to_the_owner_and_moves_nothing(tmp_path: Path) -> None:
    """Else the owner would let go of a session that its client goes on with, and tell it nothing until it speaks (seed 506)."""
    settings = Settings(data=tmp_path, partitions=1)
    view = MemberView(timeout_s=5.0)
    view.observe([member_cell(Member(one, "127.0.0.1:1", "127.0.0.1:2"), 1) for one in ("m1", "m2")], 0.0)
    owner = view.owner(0)
    assert owner is not None
    here = "m2" if owner.id == "m1" else "m1"
    desk, wires = Desk(), Wires()
    router = Router(settings, KEYRING, desk, view, here, wires, Metrics())
    router.members_changed()
    connection = End()
    router.opened(connection)
    init = encode(ClientMessage(init=Init(nonce="n", application="demo", device="d")))
    assert router.received(connection, init)
    assert [message.init is not None for message, _ in desk.received] == [True], "a new client begins here"
    token = KEYRING.sign(Claims(ClientId("c"), "demo", "d", 1, "local", 1))
    assert router.received(connection, encode(ClientMessage(token=token)))
    assert connection.owner == owner.id
    wires.sent.clear()
    assert router.received(connection, init)
    assert wires.sent == [(owner.id, Forward(connection.number, init))]
    assert (connection.owner, connection.token) == (owner.id, token)
    assert not any(isinstance(frame, Closed) for _, frame in wires.sent)
    router.stop()
