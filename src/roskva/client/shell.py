"""`roskva.Client`: the client's core with a channel, a clock, dice and a state file (Thialfi 3.3; asyncio).

The shell decides nothing about the protocol. It feeds the core, carries out its actions in order, keeps one timer for the
core's next deadline, connects again when a connection ends, and brings notifications to the application. It is long, since all that an
application may ask of a client stands together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Self

import msgspec

from roskva.client import actions, shell_waking, waking
from roskva.client.actions import Action, Notification
from roskva.client.callbacks import Callback, Callbacks, call, key_of, keys_of
from roskva.client.channels.connector import Connector
from roskva.client.channels.link import Link, NotConnected
from roskva.client.choice import AUTO
from roskva.client.core import ClientCore
from roskva.client.credential import REFRESH, check_credential
from roskva.client.desired import check_interval
from roskva.client.following import Following
from roskva.client.handlers import Handler, Handlers, Refused
from roskva.client.limits import connect_pause_s
from roskva.client.mailbox import Mailbox
from roskva.client.shell_credentials import Credentials, Provider
from roskva.client.statefile import StateFile, new_device, open_identity
from roskva.errors import ClientStopped, InvalidSetting, InvalidVersion, ServiceUnreachable
from roskva.model import check_application, check_device, name_given, name_to_text, version_from_number
from roskva.protocol.channel import Channel
from roskva.protocol.messages import ClientMessage, Config, Info, ServerMessage, encode

log = logging.getLogger(__name__)

LIBRARY: Final = "roskva-python/1"
WISHES_PAUSE_S: Final = 0.02  # between messages with new wishes while earlier ones are unanswered; a service refuses a hundred that wait
DRAIN_S: Final = 1.0  # how long a closing client waits for its last acknowledgements to be sent


class Client:
    """Registers for objects, and is told of their latest versions.

    `url` is where the service is; `state` a file in which the client's identity is kept between runs (without it every run is
    a new client); `device` the client's own id, unique per installation, by which publishers may name the source of a change
    (without it a random one, kept in the state file).

    >>> import asyncio, os
    >>> from roskva import Client, Publisher
    >>> url = os.environ["ROSKVA_URL"]
    >>> async def watch(name):
    ...     async with Client(url, application="demo") as client, Publisher(url, application="demo") as publisher:
    ...         await client.register(name)
    ...         await publisher.publish(name, 7)
    ...         async for notification in client:  # acknowledged when the loop comes back for the next one
    ...             if notification.version == 7:
    ...                 return notification.object
    >>> asyncio.run(watch("docs/client-example"))
    'docs/client-example'

    Instead of the loop, callbacks may be given, plain or `async`, called one at a time: `on_notify(notification)`,
    `on_unknown(notification)` (without it `on_notify` gets these too), `on_status(name, registered)`,
    `on_failure(name, transient, code, message)` and `on_reissue()`, which may state the registrations. A notification is
    acknowledged when its callback returned; if it raised, that is logged, and the service delivers the notification again.

    A service that cannot be reached is no error: the client keeps trying, with pauses. `await client.synced(timeout)` tells.
    `url` may be a list of addresses of one service: after three failures in a row the client goes to the next, and stays there.

    `channel` is how messages travel: `auto` (a WebSocket, and long polls where a proxy breaks it), `websocket`, `long-poll`, or a
    `roskva.Channel` of the application's own; then there is no `url`.

    `credential` says who the user is, where the application asks for that: a text, or a function (plain or `async`, quick to return) that
    answers one, called at the start and whenever another is needed. `use_credential` changes it. `on_credential_refused(code, message)` is
    called when the service does not take it (`credential-refused`: time to sign in again); the client keeps trying, with pauses.
    """

    def __init__(
        self,
        url: str | Sequence[str] = "",
        *,
        application: str,
        state: str | os.PathLike[str] | None = None,
        device: str | None = None,
        on_notify: Callback | None = None,
        on_unknown: Callback | None = None,
        on_status: Callback | None = None,
        on_failure: Callback | None = None,
        on_reissue: Callback | None = None,
        on_credential_refused: Callback | None = None,
        config: Config | None = None,
        channel: str | Channel = AUTO,
        credential: str | Provider | None = None,
    ) -> None:
        self._connector = Connector(url, channel)
        self.application = check_application(application)
        self.device = "" if device is None else check_device(device)
        self._state_file = None if state is None else StateFile(state)
        self._callbacks = Callbacks(on_notify, on_unknown, on_status, on_failure, on_reissue, on_credential_refused)
        self._credentials = Credentials(credential)
        self._config = config  # until the service sends its own
        self._random: Callable[[], float] = random.random
        self._core: ClientCore | None = None
        self._channel: Link | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wishing: asyncio.Handle | None = None  # wishes wait to be sent together
        self._wished_s = float("-inf")  # when they last were
        self._tasks: list[asyncio.Task[None]] = []
        self._notifications: Mailbox[Notification] = Mailbox()  # for `async for`
        self._with_application: set[Notification] = set()  # taken by a loop, not acknowledged
        self._to_acknowledge: list[Notification] = []
        self._handlers = Handlers()  # of objects with a handler of their own
        self._following = Following()
        self._forget_too: list[Callable[[], Awaitable[None]]] = []
        self._watchers: list[asyncio.Future[None]] = []
        self._unreachable = ""  # why the last connection failed
        self._woken = asyncio.Event()  # who waits to connect again need not wait so long
        self._closed = False
        self._forgotten = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def start(self) -> None:
        """Begin, and return at once. `async with` does this."""
        if self._core is not None or self._closed:
            raise ClientStopped("This client was started before.")
        kept = None
        if self._state_file is not None:
            self.device, kept = await asyncio.to_thread(open_identity, self._state_file, self.application, self.device)
        self.device = self.device or new_device()
        self._core = ClientCore(
            self.application,
            self.device,
            random=self._random,
            nonce=lambda: secrets.token_urlsafe(12),
            state=kept,
            config=self._config,
            library=LIBRARY,
            credential=self._credentials.text,
        )
        self._perform(self._core.start(self._now()))
        self._look()
        self._tasks = [asyncio.create_task(self._stay_connected(), name="roskva-client")]
        if self._credentials.provided:
            providing = self._credentials.provide(self._core, self.use_credential, self._random)
            self._tasks.append(asyncio.create_task(providing, name="roskva-credential"))
        if self._callbacks:
            self._tasks.append(asyncio.create_task(self._callbacks.run(), name="roskva-callbacks"))

    async def close(self) -> None:
        """End. The service keeps the registrations, and what is unacknowledged, for the next run of the same state."""
        if self._closed:
            return
        self._flush_acknowledgements()
        if self._wishing is not None:
            self._wishing.cancel()
            self._tell_wishes()
        self._closed = True
        if self._channel is not None:
            try:
                async with asyncio.timeout(DRAIN_S):
                    await self._channel.drained()
            except TimeoutError:
                log.debug("closing with messages unsent")
        if self._core is not None:
            self._perform(self._core.stop())
        shell_waking.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        self._end_waiting()
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:  # a callback may close its client
                task.cancel()
        await asyncio.gather(*(task for task in self._tasks if task is not current), return_exceptions=True)
        if self._state_file is not None:
            self._state_file.close()

    async def forget(self, timeout: float = 10.0) -> None:
        """Sign out: the service deletes this client's id with all its registrations, the state file goes, and the client has ended.

        So have its caches, and their stores are empty.

        If the service does not confirm it within `timeout` seconds: ServiceUnreachable if there is no connection, else TimeoutError. The
        client has ended and its state is gone all the same; then the service collects what it has of it when it was not seen for long.
        """
        core = self._running()
        self._forgotten = True
        self._perform(core.forget(self._now()))
        failed = await self._forget_caches()
        try:
            await self._await(lambda: core.stopped is not None, timeout, "the client is not deleted")
            if failed is not None:
                raise failed
        finally:
            if self._state_file is not None:
                await asyncio.to_thread(self._state_file.delete)
            await self.close()

    async def _forget_caches(self) -> Exception | None:
        """Answers why one could not, if so."""
        failed: Exception | None = None
        for forget in reversed(list(self._forget_too)):  # the last first: it may hold the store of one before it
            try:
                await forget()
            except Exception as error:
                log.exception("what a cache of this client held could not be deleted")
                failed = failed or error
        return failed

    def when_forgotten(self, forget: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """For caches: called when the user signs out, to leave nothing behind. Call what this answers to be called no more."""
        self._forget_too.append(forget)
        return partial(self._forget_too.remove, forget)

    async def register(
        self,
        name: str | bytes,
        version: int | None = None,
        epoch: int = 0,
        handler: Handler | None = None,
        refused: Refused | None = None,
        notify_interval_ms: int | None = None,
    ) -> None:
        """Wish to be told of an object's versions. Returns when the wish is recorded here; `synced` waits for the service.

        Thousands may be wished for in a loop: those of one turn of the event loop travel together.

        `version` (and its `epoch`, as the notification told it) is the one that the application holds already, and keeps over a
        restart: nothing is sent for it or for older ones. `handler` is called with this object's notifications, at once and instead of
        loops and callbacks, until the object is unregistered; it gives each to `acknowledge` when it was dealt with. If the service refuses
        the registration for good, or ends it, the handler is called no more, and `refused(name, code, message)` is, beside `on_failure`.

        `notify_interval_ms`: be told of this object at most once in so long, of the latest version then; the application's own interval
        counts if that is longer. None leaves what an earlier call or start stated, 0 ends it.
        """
        held = None if version is None else version_from_number(version)
        if not 0 <= epoch < 2**32:
            raise InvalidVersion(epoch)
        check_interval(notify_interval_ms)
        core, key = self._running(), name_given(name)
        if handler is not None and key in core.desired and not self._handlers.may_take(key, handler):
            raise InvalidSetting(f"The object {name_to_text(key)!r} is registered already, without this handler.")
        left = self._handlers.take(key, handler, refused)
        if self._wishing is not None and core.operations.wants(key) is False:
            self._wishing.cancel()
            self._tell_wishes()  # that it be unregistered, first: else the service would see no change, and tell nothing anew
        self._wish(core.register(self._now(), key, held, epoch, notify_interval_ms, at_once=False))
        for notification in left:
            self._notify(notification)

    async def unregister(self, name: str | bytes, forget: bool = False) -> None:
        """Wish no more to be told of it. `forget`: should it be registered again in this run, everything is told anew."""
        core, key = self._running(), name_given(name)
        self._wish(core.unregister(self._now(), key, forget, at_once=False))
        self._take_back(key)

    def _take_back(self, key: bytes) -> None:
        """It is registered no more: what nobody has dealt with is told to whoever registers it next."""
        for notification in (*self._handlers.drop(key), *self._notifications.drop(keys_of(key))):
            if self._core is not None:
                self._perform(self._core.give_back(self._now(), notification))

    async def release(self, name: str | bytes) -> None:
        """Its handler is called no more. The registration stays: what comes is kept for the handler with which it is registered next."""
        self._running()
        self._handlers.release(name_given(name))

    def acknowledge(self, notification: Notification) -> None:
        """The application has dealt with it. Loops and callbacks do this by themselves."""
        self._with_application.discard(notification)
        self._handlers.dealt_with(notification)
        if not self._closed:
            if not self._to_acknowledge:  # those of one turn of the event loop travel together
                asyncio.get_running_loop().call_soon(self._flush_acknowledgements)
            self._to_acknowledge.append(notification)

    def use_credential(self, credential: str) -> None:
        """The user's credential from now on: shown at once if there is a connection, and whenever the service asks. Registrations stay."""
        if self._core is None:
            self._credentials.text = check_credential(credential)
        else:
            self._perform(self._core.use_credential(self._now(), credential))

    @property
    def credential_problem(self) -> str:
        """`credential-required`, `credential-refused` or `credential-expired`: the service does nothing for this client. Empty: none."""
        return self._credentials.problem

    @property
    def in_sync(self) -> bool:
        """The service has exactly the registrations wished for, owes this client nothing, and said so a moment ago."""
        return self._core is not None and not self._closed and self._core.in_sync(self._now())

    def told_until(self, name: str | bytes) -> float | None:
        """Up to when (in the event loop's time) the service has told of every change of this object that it knew: now, while all is well.

        For whoever shows or caches one object: `in_sync` speaks of all at once. None: the registration is not confirmed.
        """
        core = self._core
        return None if core is None or self._closed else self._following.told_until(core, self._now(), name_given(name))

    @property
    def connected(self) -> bool:
        return self._channel is not None

    @property
    def url(self) -> str:
        """Where the client is connected, or tries to."""
        return self._connector.url

    @property
    def channel(self) -> str:
        """How: `websocket`, `long-poll`, or `carried` by the application's own channel."""
        return self._connector.kind

    @property
    def registrations(self) -> list[str]:
        """The objects wished for."""
        return [] if self._core is None else [name_to_text(name) for name in self._core.desired]

    async def synced(self, timeout: float | None = None) -> None:
        """Wait until the service has confirmed exactly the registrations wished for.

        It does not wait for notifications: whether any are owed or unacknowledged, `in_sync` tells. After `timeout` seconds:
        ServiceUnreachable if there is no connection, else TimeoutError.
        """
        await self._await(lambda: self._running().confirmed(self._now()), timeout, "not in sync")

    async def _await(self, true: Callable[[], bool], timeout: float | None, otherwise: str) -> None:
        try:
            async with asyncio.timeout(timeout):
                while not true():
                    watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._watchers.append(watcher)
                    await watcher
        except TimeoutError:
            if not self.connected:
                raise ServiceUnreachable(self._unreachable or f"There is no connection to {self.url}.") from None
            why = f" ({self.credential_problem})" if self.credential_problem else ""
            raise TimeoutError(f"{otherwise}{why}: {self.url}, after {timeout} s") from None

    def __aiter__(self) -> Notifications:
        """The notifications as they come. Each is acknowledged when the loop comes back for the next; one that the loop left
        without coming back (a break, an exception) is given to the next loop again."""
        if self._callbacks.on_notify is not None:
            raise RuntimeError("this client has a callback for its notifications: there are none left to loop over")
        return Notifications(self)

    # Between the application and the core.

    def _running(self) -> ClientCore:
        if self._core is None:
            raise ClientStopped("The client is not started: use `async with`, or await start().")
        if self._core.stopped is not None:
            raise self._core.stopped
        if self._closed:
            raise ClientStopped("The client was closed.")
        return self._core

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _flush_acknowledgements(self) -> None:
        waiting, self._to_acknowledge = self._to_acknowledge, []
        if waiting and self._core is not None and not self._closed:
            self._perform(self._core.acknowledge(self._now(), *waiting))

    def _wish(self, wanted: list[Action]) -> None:
        """A wish is recorded. It is told with the others of this turn of the event loop, and soon enough not to wait for the answers to
        earlier ones; whatever else is sent before takes it along."""
        if wanted:
            self._perform(wanted)
        if self._wishing is None and self._channel is not None and self._core is not None:
            loop = asyncio.get_running_loop()
            again_s = self._wished_s + WISHES_PAUSE_S
            if self._core.operations.unanswered and again_s > loop.time():
                self._wishing = loop.call_at(again_s, self._tell_wishes)
            else:
                self._wishing = loop.call_soon(self._tell_wishes)

    def _tell_wishes(self) -> None:
        self._wishing = None
        self._wished_s = self._now()
        self._tick()

    async def _next(self) -> Notification:
        while (notification := await self._notifications.take()) is not None:
            core = self._running()
            if notification.name in core.desired:
                self._with_application.add(notification)
                return notification
            self._perform(core.give_back(self._now(), notification))  # unregistered while it waited here
        if self._core is not None and self._core.stopped is not None and not self._closed:
            raise self._core.stopped
        raise StopAsyncIteration

    def _came_back(self, notification: Notification) -> None:
        if notification in self._with_application:
            self.acknowledge(notification)

    def _left(self, notification: Notification) -> None:
        if notification in self._with_application and not self._closed:
            self._with_application.discard(notification)
            self._notifications.put_back(key_of(notification), notification)

    # The core's actions.

    def _perform(self, wanted: list[Action]) -> None:
        for action in wanted:
            if isinstance(action, actions.Send):
                if self._channel is not None:
                    self._channel.send(encode(self._introduced(action.message)))
            elif isinstance(action, actions.Notify):
                self._notify(action.notification)
            elif isinstance(action, actions.WriteState):
                self._write_state(action.state)
            elif isinstance(action, actions.CloseChannel):
                if self._channel is not None:
                    self._channel.hang_up()
            elif isinstance(action, actions.Stopped):
                log.log(logging.INFO if self._forgotten else logging.ERROR, "the client stopped: %s", action.error)
                self._end_waiting()
            elif isinstance(action, actions.CredentialAccepted):
                self._credentials.accepted(action)
            elif isinstance(action, actions.CredentialWanted):
                self._credential_wanted(action)
            else:
                if isinstance(action, actions.RegistrationFailed) and not action.transient:
                    self._refused(action)
                self._callbacks.tell(action)
        self._set_timer()
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    def _introduced(self, message: ClientMessage) -> ClientMessage:
        return message if message.init is None else msgspec.structs.replace(message, info=Info(library=LIBRARY, channel=self.channel))

    def _credential_wanted(self, action: actions.CredentialWanted) -> None:
        if action.code != REFRESH:
            self._following.connected()  # nothing is told any more: as over a new connection, it must catch up first
        if self._credentials.wanted(action):
            self._callbacks.tell(action)

    def _refused(self, action: actions.RegistrationFailed) -> None:
        """For good, or it stood and was ended: nobody waits for it any more."""
        refused = self._handlers.who_hears_of_a_refusal(action.name)
        self._take_back(action.name)
        if refused is not None:
            try:
                refused(action.name, action.code, action.message)
            except Exception:
                log.exception("whoever registered %s failed as it was told of the refusal", name_to_text(action.name))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = None if self._core is None or self._closed else self._core.next_deadline()
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_at(max(deadline, self._now()), self._tick)

    def _tick(self) -> None:
        if self._core is not None:
            self._perform(self._core.tick(self._now()))

    def _notify(self, notification: Notification) -> None:
        try:
            if self._handlers.tell(notification):
                return
        except Exception:
            log.exception("the handler of %s failed; the service delivers the notification again", notification.object)
            self._handlers.dealt_with(notification)
            if self._core is not None:
                self._perform(self._core.give_back(self._now(), notification))
            return
        callback = self._callbacks.of(notification)
        if callback is None:
            self._notifications.put(key_of(notification), notification)
        else:
            self._callbacks.notify(notification, partial(self._hand_over, callback, notification))

    async def _hand_over(self, callback: Callback, notification: Notification) -> None:
        core = self._core
        if core is None:
            return
        if notification.name not in core.desired or notification.name in self._handlers:
            self._perform(core.give_back(self._now(), notification))  # unregistered while it waited here
            return
        self._handlers.callback_begins(notification)
        try:
            await call(callback, notification)
        except BaseException:
            if self._handlers.callback_ends(notification):
                self._perform(core.give_back(self._now(), notification))
            raise
        if self._handlers.callback_ends(notification) or notification.name not in core.desired:  # else it is another's by now
            self.acknowledge(notification)

    def _end_waiting(self) -> None:
        self._notifications.close()
        self._callbacks.close()
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    # The connection.

    async def _stay_connected(self) -> None:
        core = self._core
        assert core is not None
        async with self._connector as connector:
            failures, warned = 0, False
            while core.stopped is None:
                await self._credentials.before_connecting(core, self._now())
                try:
                    heard = await self._connection(core, await connector.connect())
                    failures, warned = 0 if heard else failures + 1, warned and not heard
                except NotConnected as error:
                    if connector.falls_back:
                        log.info("%s The client tries long polls.", error.what)
                    elif not warned:
                        log.warning("%s The client keeps trying.", error.what)
                        warned = True
                    self._unreachable = error.what
                    failures += 1
                except Exception:
                    log.exception("a connection ended by a defect of this library; the client keeps trying")
                    failures += 1
                pause_s = 0.0 if connector.has_next else connect_pause_s(core.config, failures, self._random(), core.spread_s)
                if core.stopped is None:
                    self._woken.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._woken.wait(), pause_s)
                    if self._woken.is_set():  # everybody here woke at this moment, whether the pause was over or not
                        await asyncio.sleep(waking.smear_s(self._random()))

    async def _connection(self, core: ClientCore, channel: Link) -> bool:
        """One connection, from its first word to its end; answers whether the service said anything over it."""

        def received(message: ServerMessage) -> None:
            wanted = core.received(self._now(), message)
            self._following.heard(core, self._now())
            self._perform(wanted)

        self._channel = channel
        self._following.connected()
        try:
            self._perform(core.connected(self._now()))
            reason = await self._connector.carry(channel, received)
            self._unreachable = f"The connection to {self.url} was {reason}."
            log.info("disconnected from %s: %s", self.url, reason)
        finally:
            self._channel = None
            self._perform(core.disconnected(self._now()))
        return channel.heard

    def _look(self) -> None:
        shell_waking.watch(self, Client._woke)

    def _woke(self) -> None:
        """This program or its machine slept (waking.py): whatever was known of the connection is asked again."""
        self._woken.set()
        core, channel = self._core, self._channel
        if core is None or channel is None:
            return

        loop = asyncio.get_running_loop()

        def ask() -> None:
            if channel is self._channel:
                self._perform(core.connected(self._now()))  # as if it were new: the client speaks
                loop.call_later(waking.ANSWER_S, hang_up_unless_answered)

        def hang_up_unless_answered() -> None:
            if channel is self._channel and not core.alive(self._now()):
                channel.hang_up("not answered after a sleep")

        self._following.connected()
        self._perform(core.disconnected(self._now()))  # it trusts nothing that it heard before
        loop.call_later(waking.READS_S, ask)

    def _write_state(self, data: bytes) -> None:
        file = self._state_file
        if file is None or self._channel is None or self._forgotten:
            return

        async def write() -> None:
            if self._forgotten:
                return
            try:
                await asyncio.to_thread(file.write, data)
            except OSError as error:
                log.error("the state file %s cannot be written: %s", file.path, error)

        self._channel.first(write)


class Notifications:
    """One `async for` over a client's notifications."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._current: Notification | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Notification:
        current, self._current = self._current, None
        if current is not None:
            self._client._came_back(current)
        self._current = await self._client._next()
        return self._current

    def __del__(self) -> None:
        if self._current is not None:  # the loop was left without coming back
            self._client._left(self._current)
