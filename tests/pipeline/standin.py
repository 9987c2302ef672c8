"""A Registrar stand-in for the pipeline's tests: a real socket that speaks the internal protocol, and a heartbeat in the table.

It keeps what it was told, with the time, and can be told to hang, to refuse, or to die.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from roskva.config import Settings
from roskva.feed import open_feed
from roskva.feed.interface import UPDATES, Entry
from roskva.keys import load_keys
from roskva.matcher.forms import Stamp
from roskva.model import SETTLED, ClientId, ObjectKey, Propagation, Registration, Stamps, object_key, partition_of, rendezvous
from roskva.protocol.internal import (
    Challenge,
    Hello,
    Probe,
    Probed,
    Propagate,
    Propagated,
    Prove,
    callee_proof,
    caller_proof,
    decode_frame,
    encode_frame,
)
from roskva.registrar.events import encode_registration
from roskva.registrar.members import MEMBERS_ROW, Member, member_cell
from roskva.table import open_table
from roskva.table.interface import Mutation
from roskva.table.marks import MarkReader

Judge = Callable[[Propagation], int]


def settings_for(data: Path, **changes: object) -> Settings:
    defaults: dict[str, object] = {"data": data, "member_timeout_s": 2.0, "propagation_timeout_s": 0.7, "pipeline_memory": "512m"}
    return Settings(**{**defaults, **changes})  # type: ignore[arg-type]  # a test may change any setting, each of its own type


def wait_until(condition: Callable[[], object], timeout_s: float = 60.0, what: str = "") -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s} s: {what or condition}")
        time.sleep(0.01)


class RegistrarStandIn:
    def __init__(self, settings: Settings, judge: Judge = lambda told: SETTLED, identity: str = "") -> None:
        self.settings = settings
        self.judge = judge
        self.told: list[tuple[float, Propagation]] = []
        self.stamps: list[Stamps] = []
        self.calls = 0
        self.probes = 0
        self.answering = threading.Event()  # cleared: it takes calls and never answers
        self.answering.set()
        self.beating = threading.Event()
        self.beating.set()
        self._key = load_keys(settings.data).internal
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.id = identity or secrets.token_hex(4)
        self.member = Member(self.id, f"127.0.0.1:{self._listener.getsockname()[1]}", "127.0.0.1:1")
        self._counter = 0
        self._open: set[socket.socket] = set()
        self._ended = threading.Event()
        self.beat()
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._accept, self._heartbeat)]
        for thread in self._threads:
            thread.start()

    def beat(self, left: bool = False) -> None:
        self._counter += 1
        member = msgspec.structs.replace(self.member, left=left)
        open_table(self.settings).write([Mutation(MEMBERS_ROW, [member_cell(member, self._counter)])])

    def _heartbeat(self) -> None:
        while not self._ended.wait(0.3):
            if self.beating.is_set():
                self.beat()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            nonce = secrets.token_bytes(16)
            hello: Hello | None = None
            authenticated = False
            while head := stream.read(4):
                frame = decode_frame(stream.read(int.from_bytes(head, "big")))
                if isinstance(frame, Hello):
                    hello = frame
                    connection.sendall(encode_frame(Challenge(nonce, callee_proof(self._key, hello, nonce))))
                    continue
                if isinstance(frame, Prove) and hello is not None:
                    authenticated = frame.mac == caller_proof(self._key, hello, nonce)
                assert authenticated, "the pipeline must prove that it knows the internal key"
                if isinstance(frame, Propagate):
                    self.calls += 1
                    now_s = time.time()
                    self.told += [(now_s, told) for told in frame.propagations]
                    self.stamps += frame.stamps
                    self.answering.wait()
                    connection.sendall(encode_frame(Propagated(frame.call, [self.judge(told) for told in frame.propagations])))
                elif isinstance(frame, Probe):
                    self.answering.wait()
                    self.probes += 1
                    connection.sendall(encode_frame(Probed(frame.call)))
        self._open.discard(connection)

    def versions(self, key: ObjectKey, client: str | None = None) -> list[int]:
        return [told.version for _, told in list(self.told) if told.object == key and client in (None, told.client)]

    def die(self) -> None:
        """As after kill -9: connections break, nobody listens, the heartbeat stands still; the member's cell stays."""
        self._ended.set()
        self.answering.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(2)

    def leave(self) -> None:
        """As after a clean stop."""
        self.die()
        self.beat(left=True)


def publish(settings: Settings, name: str, version: int, source: str = "", epoch: int | None = 0, application: str = "demo") -> ObjectKey:
    """What the gateway appends for an accepted publish."""
    key = object_key(application, epoch or 0, name.encode())
    item = {"object": name, "version": version, "source": source}
    open_feed(settings).append(UPDATES, [Entry(key, msgspec.json.encode(item), Stamp(application, epoch).encode())])
    return key


def register(settings: Settings, client: str, name: str, seqno: int, device: str = "", registered: bool = True) -> ObjectKey:
    """What the Registrar appends for a registration that it recorded."""
    key = object_key("demo", 0, name.encode())
    registration = Registration(ClientId(client), key, seqno, registered, device or client)
    open_feed(settings).append("registrations", [Entry(key, encode_registration(registration))])
    return key


def sharing_ids(partitions: int) -> tuple[str, str]:
    """Two members of whom each owns some of the partitions."""
    pairs = (("a", f"b{number}") for number in range(100))
    return next(pair for pair in pairs if len({rendezvous(partition, pair) for partition in range(partitions)}) == 2)


def name_in_partition(partition: int, partitions: int = 4, prefix: str = "o") -> str:
    return next(
        name
        for number in range(1_000)
        if partition_of(object_key("demo", 0, (name := f"{prefix}{number}").encode()), partitions) == partition
    )


def marked(settings: Settings) -> set[str]:
    """The clients that a new reader of the marks finds."""
    reader, table = MarkReader(settings.mark_bucket_s, settings.mark_retention_s), open_table(settings)
    found: set[str] = set()
    for partition in range(settings.partitions):
        for _ in range(2):  # the first finds the head
            plan = reader.plan(partition, 0.0)
            found.update(reader.take(plan, table.read(plan.rows)))
    return found
