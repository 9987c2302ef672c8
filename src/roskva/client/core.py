"""The client as a state machine without I/O (Thialfi 3.3 and 4.1).

Theory of operation. The core holds what the application wishes for (`desired`), the operations that the server has not
answered (`operations`), the one sync that may be in flight (`syncing`) and what was shown to the application (`handover`).
It is in one of three states:

    without a token    `init` is repeated, each time with a new nonce; only the grant that echoes the last nonce counts
    with a token       every message carries it, and the summary of the desired registrations
    stopped            nothing happens any more

In the first two the server may want to know who the user is (`credential`): until it does, little is said.

Everything that waits for a time or for the connection is decided in one place, `_flush`, at the end of every input. The
core never waits: it says when it wants to be called (`next_deadline`).

The caller's duties, in this order:

1. Call `start` once; then the inputs, one at a time, as things happen. `now` is a monotonic clock in seconds and never
   falls.
2. Carry out the returned actions in order. A `WriteState` should be durable before the messages after it are sent: else a
   crash may cost a new client id, though never an update.
3. Call `connected` when a channel is up, `disconnected` when it is gone; `CloseChannel` means: close it, and connect again.
4. Call `tick` at `next_deadline`, which may change with every input. Earlier or later does no harm.
5. Hand each `Notify` to the application, and call `acknowledge` when it is done with it, or `give_back` if it failed. What
   is neither is taken to be still at work, and is not shown again in this run.

Not here: the pauses between connections (the shell's), and what is kept on disk (the bytes of `WriteState`, nothing else).
It is long, since all inputs stand beside the one place that they meet in.
Pure: no clock, no randomness, no logging; `random` yields floats from 0 to 1, `nonce` fresh unguessable texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from roskva.client.actions import (
    Action,
    CloseChannel,
    CredentialAccepted,
    CredentialWanted,
    Notification,
    Notify,
    RegistrationFailed,
    ReissueRegistrations,
    Reported,
    Send,
    StatusChanged,
    Stopped,
    WriteState,
)
from roskva.client.credential import REFRESH, Credential, check_credential
from roskva.client.desired import Desired, Held, check_interval
from roskva.client.handover import Handover, Verdict, ack_of
from roskva.client.handshake import Handshake, Refusal
from roskva.client.limits import within_reason
from roskva.client.operations import Operations, pause_s
from roskva.client.outbox import Outbox
from roskva.client.state import encode_state, prior_token
from roskva.client.syncing import Syncing
from roskva.errors import BadRequest, ClientStopped, GoingAway, NotAuthorized, Overloaded, RoskvaError, from_report
from roskva.model import check_application, check_device, name_from_text
from roskva.probes import reached
from roskva.protocol import messages
from roskva.protocol.messages import (
    ClientMessage,
    Config,
    CredentialState,
    ErrorReport,
    Info,
    ServerMessage,
    StartAnew,
    Status,
    Summary,
    SyncRequest,
)

FORGET_SETTLES_S: Final = 5.0  # a client that signs out waits so long for its unregistrations to reach the Matcher
RESTATING_PAUSES_MAX: Final = 10  # the application may take so many retry_min_s to restate its registrations after a restart
_NEVER: Final = float("-inf")
_NOTHING: Final = Summary(count=0, digest="0" * 32)


class ClientCore:
    """One run of one client. `state` is what the last run's `WriteState` gave; `state_ignored` says why it was of no use."""

    def __init__(
        self,
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
        self.config = within_reason(config or Config())
        self.desired = Desired()
        self.operations = Operations()
        self.syncing = Syncing()
        self.handover = Handover()
        self.credential = Credential(random, check_credential(credential))
        self._outbox = Outbox(self.desired, self.operations, self.credential, random)
        self.stopped: RoskvaError | None = None  # why, once it is
        self._handshake = Handshake(check_application(application), check_device(device), nonce)
        self._handshake.prior, self.state_ignored = prior_token(state, application, device)
        self._random = random
        self._library = library
        self._connected = False
        self._alive_at = _NEVER  # when anything came, over this connection
        self._heard_at = _NEVER  # when a message of this session came, over this connection
        self._quiet_until = _NEVER  # after a config
        self._refused_until = _NEVER  # after an error, over this connection: another one may lead to a gateway that has room
        self.spread_s = 0.0  # a gateway that goes has asked its clients to come back within so long, not all at once
        # After a restart operations wait a moment, in case the server still has all that the application is about to restate.
        self._restating_until: float | None = None
        self._restating_end = _NEVER
        self._server_summary: Summary | None = None
        self._unsettled = 0
        self._forget_due: float | None = None  # when the server is asked (again) to delete this client; None: never
        self._forget_patience = _NEVER  # until then it is not asked before its registrations are settled
        self._forget_tries = 0

    def start(self, now: float) -> list[Action]:
        """Begin. Every start handshakes (Thialfi 4.1.2), and asks the application for its registrations (4.1.3)."""
        return [ReissueRegistrations(), *self._flush(now)]

    def stop(self) -> list[Action]:
        """End at the application's wish. The server keeps the registrations for the next start."""
        if self.stopped is not None:
            return []
        self.stopped = ClientStopped("The client was stopped.")
        return [CloseChannel()]

    def forget(self, now: float) -> list[Action]:
        """Sign out: wish for nothing, and when the server has settled that, or has not for a while, ask it to delete this client.

        `Stopped` says that it did.
        """
        if self.stopped is not None:
            return []
        if not self._handshake.token and not self._handshake.prior:
            return [WriteState(self._state()), *self._end(ClientStopped("The client was forgotten."))]
        self._forget_due = _NEVER
        self._forget_patience = now + FORGET_SETTLES_S
        self._restating_until = None
        self.operations.clear()  # the sync states that there is nothing; its number is above theirs
        for name in list(self.desired):
            self.handover.unregistered(name, forget=True)
            self.desired.remove(name)
        self.desired.unconfirmed.clear()
        return self._flush(now)

    def connected(self, now: float) -> list[Action]:
        """A channel is up. A session lives on over any channel: its first message says where the client is now."""
        self._connected = True
        self._alive_at = now
        self._heard_at = _NEVER
        self._refused_until = _NEVER
        self.spread_s = 0.0
        self._handshake.due = _NEVER
        self._outbox.must_speak = True
        self.credential.connected()
        self._restart()
        return self._flush(now)

    def _restart(self) -> None:
        """Whatever waits for an answer is said again at once."""
        self.operations.restart()
        self.syncing.interrupted()
        self._forget_due = None if self._forget_due is None else _NEVER

    def disconnected(self, now: float) -> list[Action]:
        self._connected = False
        self._heard_at = _NEVER
        return []

    def tick(self, now: float) -> list[Action]:
        return self._flush(now)

    def next_deadline(self) -> float | None:
        """When `tick` is wanted. None: only after another input."""
        if self.stopped is not None or not self._connected:
            return None
        deadline = min(self._alive_at + 2 * self.config.keepalive_s, self.credential.refresh_at)
        if not self._handshake.token:
            return min(deadline, max(self._handshake.due, self._silent_until, self.credential.held_until))
        if self.credential.wanted:
            return min(deadline, self.credential.held_until)
        deadline = min(deadline, self._outbox.heartbeat_due)
        if self._restating_until is not None:
            return min(deadline, max(self._restating_until, self._silent_until))
        waiting = self.operations.next_due(self.config)
        if not self.operations and self._differs():
            waiting = self.syncing.not_before
        forget_at = self._forget_at()
        if forget_at is not None:
            waiting = forget_at if waiting is None else min(waiting, forget_at)
        return deadline if waiting is None else min(deadline, max(waiting, self._silent_until))

    @property
    def _silent_until(self) -> float:
        return max(self._quiet_until, self._refused_until)

    def in_sync(self, now: float) -> bool:
        """The server has exactly what is wished for, owes nothing, and said so within two keepalives."""
        return self._unsettled == 0 and self.confirmed(now)

    def confirmed(self, now: float) -> bool:
        """The server has exactly what is wished for, and said so within two keepalives; it may owe notifications."""
        return self.alive(now) and not self._differs() and not self.operations and not self.syncing.in_flight

    def alive(self, now: float) -> bool:
        """The server spoke to this session over this connection, and within two keepalives."""
        return (
            self.stopped is None
            and self._connected
            and bool(self._handshake.token)
            and self._server_summary is not None
            and not self.credential.wanted
            and now - self._heard_at < 2 * self.config.keepalive_s
        )

    def register(
        self, now: float, name: bytes, version: int | None = None, epoch: int = 0, interval_ms: int | None = None, at_once: bool = True
    ) -> list[Action]:
        """Wish for an object. `version` is what the application holds, and will still hold after a restart.

        `interval_ms`: to be told at most once in so long. None leaves what the registration has. Not `at_once`: nothing is sent before the
        next input, so that many wishes travel together; the caller ticks soon.
        """
        check_interval(interval_ms)
        if self.stopped is not None or self._forget_due is not None:
            return []
        held = None if version is None else Held(version, epoch)
        new = self.desired.add(name, held)
        paced = self.desired.pace(name, interval_ms)
        self.handover.registered(name, None if version is None else (epoch, version), again=not new)
        if new or paced:
            self._operate(now, name, register=True)
        elif name not in self.desired.unconfirmed:
            return [StatusChanged(name, registered=True)]
        return self._flush(now) if at_once else []

    def unregister(self, now: float, name: bytes, forget: bool = False, at_once: bool = True) -> list[Action]:
        """Wish for it no more. `forget`: the application drops what it knew; should it register again, all is told anew."""
        if self.stopped is not None:
            return []
        self.handover.unregistered(name, forget)
        if self.desired.remove(name):
            self._operate(now, name, register=False)
        elif name not in self.desired.unconfirmed:
            return [StatusChanged(name, registered=False)]
        return self._flush(now) if at_once else []

    def _operate(self, now: float, name: bytes, register: bool) -> None:
        self.operations.add(name, register)
        if self._restating_until is not None:
            self._restating_until = min(now + self.config.retry_min_s, self._restating_end)

    def acknowledge(self, now: float, *notifications: Notification) -> list[Action]:
        """The application is done with these. Several at once travel in one message.

        They are not repeated: if one is lost the server delivers again, and is answered then.
        """
        for notification in notifications:
            acks = self.handover.acknowledged(notification)
            if notification.name in self.desired:  # else void: the server drops what it owes together with the registration
                self._outbox.acks += acks
        return self._flush(now)

    def give_back(self, now: float, notification: Notification) -> list[Action]:
        """The application failed on it: it is shown again when the server delivers it again."""
        self.handover.give_back(notification)
        return self._flush(now)

    def use_credential(self, now: float, text: str) -> list[Action]:
        """The user's credential from now on; it is shown at once. Empty: there is none any more, which is not said to anybody."""
        if self.stopped is not None or not self.credential.use(text):
            return []
        self._handshake.due = _NEVER
        self._outbox.must_speak = True
        if self.credential.wanted:
            self._restart()
        return self._flush(now)

    def received(self, now: float, message: ServerMessage) -> list[Action]:
        if self.stopped is not None or not self._connected:
            return []
        self._alive_at = now
        granted = message.grant is not None and self._handshake.answers(message.grant)
        if message.start_anew is not None and not granted:
            return self._refused(now, message.token, message.start_anew) + self._flush(now)
        ours = granted or (bool(message.token) and message.token == self._handshake.token)
        if not ours and message.token:
            return self._flush(now)  # of another session: late, or not for us
        actions: list[Action] = []
        if message.config is not None:
            self._configure(now, message.config)
        if message.error is not None:
            actions += self._reported(now, message.error)
        if message.credential is not None:
            actions += self._credential_judged(now, message.credential)
        if message.grant is not None and granted:
            if message.config is not None:
                self.handover.counts_in(message.config.epoch)
            actions += self._granted(now, message.grant.token, message.summary)
        elif ours:
            self._handshake.sound(welcomed=message.summary is not None and message.grant is None)
        if ours:
            actions += self._of_session(now, message)
        return actions + self._flush(now)

    def _of_session(self, now: float, message: ServerMessage) -> list[Action]:
        if message.summary is not None:  # else a gateway speaks that cannot reach the Registrar: it says nothing of our session
            self._heard_at = now
            self._server_summary = message.summary
            self._unsettled = message.unsettled
        actions: list[Action] = []
        for status in message.status:
            actions += self._status(now, status)
        for told in message.notify:
            actions += self._notified(told)
        if message.sync_request is not None:
            actions += self._sync_requested(now, message.sync_request)
        return actions

    def _configure(self, now: float, config: Config) -> None:
        self.config = within_reason(config)
        self._quiet_until = now + self.config.quiet_s
        self._outbox.set_heartbeat(now, self.config)

    def _reported(self, now: float, error: ErrorReport) -> list[Action]:
        """A message was refused as a whole. What it asked for is repeated by its own timer, not before the server says so.

        Up to twice as late, so that clients which were refused together do not return together. If the Registrar has not spoken over this
        connection, what was refused may be the message that says where the client is now, and no other follows: it is said again.
        """
        if self._handshake.hopeless(error.code):
            return self._end(from_report(error.code, error.message))
        if error.code == GoingAway.code:
            self.spread_s = error.retry_after_s
            return [CloseChannel()]
        if error.retry_after_s > 0:
            least_s = min(max(error.retry_after_s, self.config.retry_min_s), self.config.retry_max_s)
            self._refused_until = max(self._refused_until, now + least_s * (1.0 + self._random()))
            if error.code == Overloaded.code:
                self._again_at(self._refused_until)
            if self._heard_at == _NEVER or not self._handshake.welcomed:
                self._outbox.heartbeat_due = min(self._outbox.heartbeat_due, self._refused_until)
        return [Reported(error.code, error.message, error.transient)]

    def _again_at(self, until: float) -> None:
        """The server has no room, and knows when it will: then, however long the own pauses have become, and not later."""
        reached("client: comes again when the server said")
        self.operations.again_at(until)
        self.syncing.again_at(until)
        self._handshake.again_at(until)
        self._forget_due = None if self._forget_due is None else min(self._forget_due, until)

    def _credential_judged(self, now: float, state: CredentialState) -> list[Action]:
        """Wanted: nothing was done with a message, and nothing is told. Accepted after that: what was refused with it is asked again."""
        if state.wanted:
            self._heard_at = _NEVER
            told = self.credential.refused(now, state.code, self.config)
            return [CredentialWanted(self.credential.wanted, state.message)] if told else []
        if self.credential.accepted(now, state.good_s, self.config):
            self._restart()
        return [CredentialAccepted(state.good_s)]

    def _granted(self, now: float, token: str, summary: Summary | None) -> list[Action]:
        returning = bool(self._handshake.prior)
        restarted = returning and not self._handshake.granted_before
        self._handshake.granted(token)
        self._server_summary = summary if summary is not None or returning else _NOTHING
        self._outbox.begin(token)
        self.handover.new_session()
        self._restart()
        if restarted and summary is not None and summary.count > 0:
            self._restating_until = now + self.config.retry_min_s
            self._restating_end = now + RESTATING_PAUSES_MAX * self.config.retry_min_s
        return [WriteState(self._state())]

    def _refused(self, now: float, token: str, refusal: StartAnew) -> list[Action]:
        outcome = self._handshake.refused(now, token, refusal, self.config, self._random())
        if outcome is Refusal.NOT_OURS:
            return []
        if outcome is Refusal.TWO_OF_US:
            reached("client: superseded twice")
            return self._end(ClientStopped("Another client runs with the same state: it superseded this one twice within a minute."))
        self._server_summary = None
        self._restating_until = None
        if outcome is Refusal.ANEW and self._forget_due is not None:
            reached("client: forgotten")
            return [WriteState(self._state()), *self._end(ClientStopped("The client was forgotten."))]
        if outcome is Refusal.HANDSHAKE:
            reached("client: told to handshake again")
            return []
        reached("client: told to begin as a new client")
        self.operations.clear()  # a new client has no registrations: the sync states them all
        self.desired.unconfirmed = dict.fromkeys(self.desired, True)
        return [WriteState(self._state()), ReissueRegistrations()]

    def _state(self) -> bytes:
        return encode_state(self._handshake.application, self._handshake.device, self._handshake.token)

    def _end(self, error: RoskvaError) -> list[Action]:
        self.stopped = error
        return [CloseChannel(), Stopped(error)]

    def _status(self, now: float, status: Status) -> list[Action]:
        name = _name(status.object)
        if status.state == messages.FAILED:
            return self._failed(now, name, status)
        if status.state not in (messages.REGISTERED, messages.UNREGISTERED):
            return []  # of a later protocol
        registered = status.state == messages.REGISTERED
        if registered == (name in self.desired):
            self.operations.settle(name)
            told = self.desired.unconfirmed.pop(name, None) is None
            return [] if told else [StatusChanged(name, registered)]
        if registered or name in self.operations or name in self.desired.unconfirmed:
            return []  # a late answer to an earlier wish
        # The server dropped it, or this is a late repeat. The summaries tell which; until then it counts as absent.
        self.desired.unconfirmed[name] = True
        return [StatusChanged(name, registered=False)]

    def _failed(self, now: float, name: bytes, status: Status) -> list[Action]:
        if name not in self.operations and name not in self.desired:
            return []  # a late answer to an earlier wish
        ended = False
        if status.transient:
            self.operations.postpone(name, name in self.desired, now, self.config, self._random())
        else:
            if name in self.desired and name not in self.operations and name not in self.desired.unconfirmed:
                ended = status.code == NotAuthorized.code  # it stood, and its user may not have it any more
            self.operations.settle(name)
            if self.desired.remove(name):  # else the summaries would differ for ever
                self.handover.unregistered(name, forget=False)
            self.desired.unconfirmed.pop(name, None)
        failed = RegistrationFailed(name, status.transient, status.code, status.message)
        return [StatusChanged(name, registered=False), failed] if ended else [failed]

    def _sync_requested(self, now: float, request: SyncRequest) -> list[Action]:
        if request.buckets is None:
            if self.syncing.hinted(now):
                self.syncing.not_before = _NEVER  # `_flush` does it, if the summaries differ and nothing is in flight
            return []
        if request.op == 0 or request.op != self.syncing.asked_op:
            return []
        return list(self._outbox.sync_buckets(now, self.config, request.buckets, self.syncing))

    def _notified(self, told: messages.Notify) -> list[Action]:
        name = _name(told.object)
        if name not in self.desired:
            return []  # neither shown nor acknowledged: the server voids it when the unregistration arrives
        version = None if told.version is None else int(told.version)
        notification = Notification(name, version, told.epoch, int(told.seqno), self.handover.session)
        verdict = self.handover.delivered(notification)
        if verdict is Verdict.HAND_OVER:
            return [Notify(notification)]
        if verdict is Verdict.ACKNOWLEDGE:
            self._outbox.acks.append(ack_of(notification))
        return []

    def _flush(self, now: float) -> list[Action]:
        """Everything that may be sent now. In a quiet period: acknowledgements and heartbeats only."""
        if self.stopped is not None or not self._connected:
            return []
        if now >= self._alive_at + 2 * self.config.keepalive_s:
            self._connected = False  # half open: the other side is gone and nobody told us
            return [CloseChannel()]
        actions: list[Action] = [CredentialWanted(REFRESH, "")] if self.credential.refreshes(now) else []
        if self.credential.wanted:
            if now < self.credential.held_until:
                return actions
            self.credential.turn()
            self._outbox.must_speak = True
        quiet = now < self._silent_until
        if not self._handshake.token:
            return actions if quiet or now < self._handshake.due else [*actions, self._init(now)]
        if self._restating_until is not None and (now >= self._restating_until or not self._differs()):
            self._restating_until = None
            self.operations.clear()  # the server has them, or the sync states them
            for name in self.desired.interval_ms:  # the summary does not tell whether it has their intervals, too
                self.operations.add(name, register=True)
        while batch := self._outbox.batch(now, self.config, acks_only=quiet or self._restating_until is not None):
            actions.append(batch)
        if not self.operations and self._restating_until is None and self._server_summary is not None:
            if not self._differs():
                actions += self._agree()
            elif not quiet and now >= self.syncing.not_before:
                actions.append(self._outbox.sync(now, self.config, self.syncing))
        forget_at = self._forget_at()
        if forget_at is not None and not quiet and now >= forget_at:
            self._forget_due = now + pause_s(self.config, self._forget_tries, self._random())
            self._forget_tries += 1
            actions.append(self._outbox.message(now, self.config, forget=True))
        elif self._outbox.must_speak or now >= self._outbox.heartbeat_due:
            actions.append(self._outbox.message(now, self.config))
        return actions

    def _forget_at(self) -> float | None:
        """When to ask for it: when nothing is left to settle, so that the Matcher has no copy of any registration; or else, in the end."""
        if self._forget_due is None or self._server_summary is None:
            return None
        settled = not self._differs() and self._unsettled == 0
        return self._forget_due if settled else max(self._forget_due, self._forget_patience)

    def _differs(self) -> bool:
        return self._server_summary is not None and not self.desired.matches(self._server_summary)

    def _agree(self) -> list[Action]:
        """The summaries are equal with nothing in flight: the server has every wish, whether or not it said so one by one."""
        self.syncing.agreed()
        confirmed, self.desired.unconfirmed = self.desired.unconfirmed, {}
        return [StatusChanged(name, registered=name in self.desired) for name in confirmed]

    def _init(self, now: float) -> Send:
        init = self._handshake.init(now, self.config, self._random())
        info = Info(library=self._library) if self._library else None
        credential = self.credential.take(now, self.config, init=True)
        return Send(ClientMessage(summary=self.desired.summary(), init=init, info=info, credential=credential))


def _name(text: str) -> bytes:
    """A name that the server sent. One that cannot be is nobody's."""
    try:
        return name_from_text(text)
    except BadRequest:
        return b""
