"""The messages of one session: what every one carries, how much fits one, how operations are numbered (docs/protocol.md). Pure.

Every message carries the token and the summary of the desired registrations, so every one of them is a heartbeat too: the next
heartbeat is counted from the last message, smeared so that clients which started together do not speak together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from roskva.client.actions import Send
from roskva.client.credential import Credential
from roskva.client.desired import Desired
from roskva.client.limits import objects_per_message
from roskva.client.operations import MESSAGES_UNANSWERED_MAX, Operations, pause_s
from roskva.client.syncing import Syncing, bucket_statements, statement
from roskva.model import name_to_text
from roskva.probes import reached
from roskva.protocol.messages import Ack, ClientMessage, Config, Register, Sync, Unregister

_NEVER: Final = float("-inf")


@dataclass(slots=True)
class Outbox:
    desired: Desired
    operations: Operations
    credential: Credential
    random: Callable[[], float]
    token: str = ""
    acks: list[Ack] = field(default_factory=list)
    must_speak: bool = False  # a token takes effect with the first message that uses it
    heartbeat_due: float = _NEVER
    _next_op: int = 1

    def begin(self, token: str) -> None:
        """A new session: its operations are numbered from 1. Acknowledgements of the old one are not its to make."""
        self.token = token
        self.acks.clear()
        self.must_speak = True
        self._next_op = 1

    def batch(self, now: float, config: Config, acks_only: bool) -> Send | None:
        """One message of what waits: acknowledgements first, then operations that are due."""
        limit = self._objects_max(config)
        acks, self.acks = self.acks[:limit], self.acks[limit:]
        register: list[Register] = []
        unregister: list[Unregister] = []
        for operation in [] if acks_only else self.operations.take(now, config, limit - len(acks), self.random()):
            text, op = name_to_text(operation.name), self._take_ops(1)
            held, interval_ms = self.desired.held(operation.name), self.desired.interval_ms.get(operation.name)
            if not operation.register:
                unregister.append(Unregister(op=op, object=text))
            elif held is None:
                register.append(Register(op=op, object=text, notify_interval_ms=interval_ms))
            else:
                version, epoch = str(held.version), held.epoch
                register.append(Register(op=op, object=text, version=version, epoch=epoch, notify_interval_ms=interval_ms))
        if not acks and not register and not unregister:
            return None
        return self.message(now, config, register, unregister, acks)

    def sync(self, now: float, config: Config, syncing: Syncing) -> Send:
        sync = statement(self.desired, self._take_ops(1), self._objects_max(config))
        pause = pause_s(config, syncing.attempts, self.random())
        syncing.sent(now, sync.op, pause, asks=sync.summaries is not None)
        return self.message(now, config, sync=sync)

    def sync_buckets(self, now: float, config: Config, buckets: Sequence[int], syncing: Syncing) -> list[Send]:
        """What the server named, or as much of it as may be stated at once; then the summaries again, if it has named fewer than before."""
        at_once_max = MESSAGES_UNANSWERED_MAX * config.operations_per_message_max
        statements = bucket_statements(self.desired, buckets, self._next_op, self._objects_max(config), at_once_max)
        self._take_ops(len(statements))
        sends = [self.message(now, config, sync=part) for part in statements]
        goes_on = syncing.named(len(buckets))
        if goes_on and sum(len(part.buckets or ()) for part in statements) < len(buckets):
            reached("client: states some of the buckets that differ")
            sends.append(self.sync(now, config, syncing))
        return sends

    def message(
        self,
        now: float,
        config: Config,
        register: list[Register] | None = None,
        unregister: list[Unregister] | None = None,
        acks: list[Ack] | None = None,
        sync: Sync | None = None,
        forget: bool = False,
    ) -> Send:
        """Any message but `init`; with nothing in it, a heartbeat."""
        self.must_speak = False
        self.set_heartbeat(now, config)
        message = ClientMessage(
            token=self.token,
            summary=self.desired.summary(),
            register=register or [],
            unregister=unregister or [],
            acks=acks or [],
            sync=sync,
            forget=forget,
            credential=self.credential.take(now, config),
        )
        return Send(message)

    def set_heartbeat(self, now: float, config: Config) -> None:
        smear = config.heartbeat_smear * (2 * self.random() - 1)
        self.heartbeat_due = now + config.heartbeat_s * (1 + smear)

    def _objects_max(self, config: Config) -> int:
        return objects_per_message(config, with_credential=self.credential.due)

    def _take_ops(self, count: int) -> int:
        first = self._next_op
        self._next_op += count
        return first
