"""Users at the Registrar: whose session it is, what it may register for and hear (Thialfi 3.1, 4.1.2, 5).

A session of an application that asks for credentials has an Identity, and nothing is registered or told beyond what that one may. Whether
it may is asked at registration, and again before each notification: what cannot be answered at once stays stored until it is, and what is
refused then ends the registration. Sessions of applications that let anybody register for anything have no Identity, and cost nothing here.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from roskva.access.identity import Identity
from roskva.access.limits import Buckets
from roskva.config import ApplicationSettings
from roskva.errors import (
    BadRequest,
    CredentialExpired,
    CredentialRefused,
    CredentialRequired,
    NotAuthorized,
    RateLimited,
    RoskvaError,
    TokenElsewhere,
    TokenInvalid,
    Unavailable,
)
from roskva.model import ClientId, ObjectKey, name_from_text, name_of, name_to_text
from roskva.protocol.messages import ClientMessage, CredentialState, Status
from roskva.registrar.core import failed
from roskva.registrar.counters import Counters
from roskva.registrar.row import ClientRow
from roskva.registrar.sessions import Session

log = logging.getLogger(__name__)

# What a client can mend by sending another credential.
WANTED: Final = (CredentialRequired, CredentialRefused, CredentialExpired)
_ANYBODY: Final = Identity(user="", claims={}, issued_s=0.0, until_s=math.inf)
_OF_THE_CREDENTIAL: Final = frozenset({"exp", "iat", "nbf", "jti"})
RENEWALS_PER_S: Final = 0.5  # of one client: each is verified, or asked for
RENEWALS_AT_ONCE: Final = 10.0
_WANT_AGAIN_S: Final = 10.0
_ASK_AGAIN_MIN_S: Final = 1.0
_ASK_AGAIN_MAX_S: Final = 30.0
_CHECKED_PER_TURN: Final = 1_000


class Access(Protocol):
    """What decides: credentials and authorization (roskva.access)."""

    async def identify(self, application: str, settings: ApplicationSettings, device: str, credential: str) -> Identity: ...
    def is_revoked(self, settings: ApplicationSettings, identity: Identity) -> bool: ...
    def known(self, application: str, settings: ApplicationSettings, identity: Identity, device: str, name: str) -> bool | None: ...
    async def ask(
        self, application: str, settings: ApplicationSettings, identity: Identity, device: str, names: Sequence[str]
    ) -> dict[str, bool]: ...
    def forget(self, application: str, user: str | None = None) -> None: ...


class Desk(Protocol):
    """The part of the Registrar that this needs."""

    sessions: dict[ClientId, Session]

    def refuse(self, session: Session, error: RoskvaError) -> None: ...
    def dismiss(self, session: Session, code: str, keep: bool) -> None: ...
    def leave(self, session: Session) -> None: ...
    def speak(self, session: Session, **what: Any) -> None: ...
    def spawn(self, work: Coroutine[Any, Any, Any]) -> None: ...
    async def revoke(self, session: Session, keys: Sequence[ObjectKey]) -> None: ...


def asks_nothing(settings: ApplicationSettings) -> bool:
    """Anybody may register for anything."""
    return settings.authentication == "none" and settings.registrable == ("*",) and not settings.authorization_webhook


def wanted(error: RoskvaError) -> CredentialState:
    return CredentialState(wanted=True, code=error.code, message=str(error)[:512])


class Users:
    def __init__(
        self,
        access: Access | None,
        desk: Desk,
        counters: Counters,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        row_of: Callable[[ClientId], Awaitable[ClientRow]],
    ) -> None:
        self._access = access
        self._desk = desk
        self._counters = counters
        self._clock = clock
        self._wall_clock = wall_clock
        self._renewals = Buckets(RENEWALS_PER_S, RENEWALS_AT_ONCE)
        self._row_of = row_of
        self._doubted: dict[Session, dict[ObjectKey, None]] = {}  # what must be asked before it is told
        self._checking: dict[Session, bool] = {}  # whose registrations are being looked at; true: once more
        self._wanted_s: dict[Session, float] = {}  # when a session was last told that its credential has expired

    @property
    def access(self) -> Access:
        assert self._access is not None, "an application asks for credentials, and nothing here decides about them"
        return self._access

    async def identify(self, application: str, settings: ApplicationSettings, device: str, credential: str) -> Identity | None:
        """None: nothing is asked. Raises one of WANTED, or AuthorizationUnavailable."""
        if asks_nothing(settings):
            return None
        if settings.authentication == "none":
            return _ANYBODY
        return await self.access.identify(application, settings, device, credential)

    def still_good(self, settings: ApplicationSettings, identity: Identity | None) -> bool:
        """Whether an identity of before counts without another look at its credential: time has passed, and settings may have changed."""
        if identity is None or identity is _ANYBODY:
            return settings.authentication == "none" and asks_nothing(settings) == (identity is None)
        return settings.authentication != "none" and self.is_current(identity) and not self.access.is_revoked(settings, identity)

    def good(self, identity: Identity | None) -> CredentialState | None:
        """What a client is told of a credential that was accepted; nothing where none was asked for."""
        if identity is None or identity is _ANYBODY:
            return None
        left_s = identity.until_s - self._wall_clock()
        return CredentialState(good_s=0.0 if math.isinf(left_s) else max(left_s, 0.001))

    def is_current(self, identity: Identity | None) -> bool:
        return identity is None or identity.until_s > self._wall_clock()

    # Before something is told.

    def may_hear(self, session: Session, key: ObjectKey) -> bool:
        """Whether this may be told now. If not, it stays stored: it is sent when the answer is there, or its registration is ended."""
        identity = session.identity
        if identity is None:
            return True
        if not self.is_current(identity):
            self._want(session)
            return False
        if self.access.known(session.application, session.settings, identity, session.device, _text(key)):
            return True
        self._doubt(session, [key])
        return False

    def is_held(self, session: Session) -> bool:
        """Nothing of it need be tried again now."""
        return session in self._doubted or not self.is_current(session.identity)

    def _want(self, session: Session) -> None:
        now_s = self._wall_clock()
        if now_s - self._wanted_s.get(session, -math.inf) >= _WANT_AGAIN_S:
            self._wanted_s[session] = now_s
            self._desk.refuse(session, CredentialExpired())

    def _doubt(self, session: Session, keys: Iterable[ObjectKey]) -> None:
        doubted = self._doubted.get(session)
        if doubted is None:
            doubted = self._doubted[session] = {}
            self._desk.spawn(self._resolve(session))
        doubted |= dict.fromkeys(keys)

    async def _resolve(self, session: Session) -> None:
        """Ask for what is doubted, and end what is refused. What is allowed is sent by whoever sees that it is still owed."""
        pause_s = _ASK_AGAIN_MIN_S
        await asyncio.sleep(0)  # all of one turn of the loop together
        try:
            while self._doubted[session] and self._desk.sessions.get(session.client) is session and session.identity is not None:
                keys, self._doubted[session] = list(self._doubted[session]), {}
                try:
                    refused = await self._refused(session, session.identity, keys)
                    if refused:
                        await self._desk.revoke(session, refused)
                except Unavailable as error:
                    log.warning("notifications wait for an answer: %s", error)
                    self._doubted[session] |= dict.fromkeys(keys)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _ASK_AGAIN_MAX_S)
        finally:
            del self._doubted[session]

    async def _refused(self, session: Session, identity: Identity, keys: Sequence[ObjectKey]) -> list[ObjectKey]:
        texts = {key: _text(key) for key in keys}
        allowed = await self.access.ask(session.application, session.settings, identity, session.device, list(texts.values()))
        return [key for key, text in texts.items() if not allowed.get(text, False)]

    # Before something is registered.

    async def sift(self, session: Session, message: ClientMessage) -> tuple[ClientMessage, list[Status]]:
        """The part of a message that this user may ask for, and the answers to the rest. Raises if nobody can say now."""
        identity = session.identity
        if identity is None:
            return message, []
        stated = [*message.register, *((message.sync.objects or ()) if message.sync is not None else ())]
        texts = {one.object: text for one in stated if (text := _canonical(one.object)) is not None}
        if not texts:
            return message, []
        allowed = await self.access.ask(session.application, session.settings, identity, session.device, list(set(texts.values())))
        refused = {spelled for spelled, text in texts.items() if not allowed.get(text, False)}
        if not refused:
            return message, []
        self._counters.not_authorized += len(refused)
        left = [one for one in message.register if one.object not in refused]
        sync = message.sync
        if sync is not None and sync.objects is not None:
            sync = msgspec.structs.replace(sync, objects=[one for one in sync.objects if one.object not in refused])
        error = NotAuthorized()
        statuses = [failed(spelled, error) for spelled in sorted(refused)]
        return msgspec.structs.replace(message, register=left, sync=sync), statuses

    # When something changes.

    async def renew(self, session: Session, credential: str) -> bool:
        """Another credential of a living session: registrations stay, as far as it allows them. False: it is of somebody else."""
        wait_s = self._renewals.take(session.client, self._clock())
        if wait_s > 0:
            raise RateLimited("renewals of a credential", wait_s)
        identity = await self.identify(session.application, session.settings, session.device, credential)
        before = session.identity
        if identity is None or before is None:
            return True
        if identity.user != before.user:
            self._desk.dismiss(session, TokenInvalid.code, keep=False)
            return False
        session.identity = identity
        self._wanted_s.pop(session, None)
        self._desk.speak(session, credential=self.good(identity))
        if _rights(identity) != _rights(before):
            self.check_soon(session)
        return True

    def check_soon(self, session: Session) -> None:
        """One check of a session at a time, and one more if anything changes meanwhile."""
        if session in self._checking:
            self._checking[session] = True
        else:
            self._checking[session] = False
            self._desk.spawn(self._check_until_done(session))

    async def _check_until_done(self, session: Session) -> None:
        try:
            await self.check(session)
            while self._checking[session]:
                self._checking[session] = False
                await self.check(session)
        finally:
            del self._checking[session]

    async def check(self, session: Session) -> None:
        """End the registrations that the patterns and claims of now do not allow. What only a webhook knows is asked when it is due."""
        identity = session.identity
        if identity is None:
            return
        try:
            row = await self._row_of(session.client)
        except Unavailable as error:
            log.warning("what a user may hear is checked when it is told: %s", error)
            return
        refused: list[ObjectKey] = []
        for turn, key in enumerate(list(row.registered()), 1):
            if self.access.known(session.application, session.settings, identity, session.device, _text(key)) is False:
                refused.append(key)
            if turn % _CHECKED_PER_TURN == 0:
                await asyncio.sleep(0)
        if refused and self._desk.sessions.get(session.client) is session:
            self._doubt(session, refused)

    def applications_changed(self, before: Mapping[str, ApplicationSettings], after: Mapping[str, ApplicationSettings]) -> None:
        """The settings were read again: those who may no longer hear are told so, and what they register for is looked at anew."""
        changed = {name for name in before if after.get(name) != before[name]}
        if self._access is not None:
            for name in changed:
                self._access.forget(name)
        to_check = []
        for session in list(self._desk.sessions.values()):
            if session.application not in changed:
                continue
            settings = after.get(session.application)
            if settings is None or asks_nothing(settings) != (session.identity is None) or _asks(settings) == _is_anybody(session.identity):
                self._desk.dismiss(session, TokenElsewhere.code, keep=settings is not None)
                continue
            rules_changed = settings.registrable != session.settings.registrable
            session.settings = settings
            identity = session.identity
            if identity is not None and self._access is not None and self._access.is_revoked(settings, identity):
                self._desk.refuse(session, CredentialRefused("The user's access was revoked."))
                self._desk.leave(session)
                if session.channel is not None:
                    session.channel.session = None
            elif identity is not None and rules_changed:
                to_check.append(session)
        if to_check:
            self._desk.spawn(self._check_all(to_check))

    async def _check_all(self, sessions: Sequence[Session]) -> None:
        for session in sessions:
            await self.check(session)

    def left(self, session: Session) -> None:
        """The session ended."""
        self._wanted_s.pop(session, None)


def _asks(settings: ApplicationSettings) -> bool:
    return settings.authentication != "none"


def _is_anybody(identity: Identity | None) -> bool:
    return identity is None or identity is _ANYBODY


def _rights(identity: Identity) -> dict[str, Any]:
    """The claims that may allow something: not those that differ in every credential."""
    return {name: value for name, value in identity.claims.items() if name not in _OF_THE_CREDENTIAL}


def _text(key: ObjectKey) -> str:
    return name_to_text(name_of(key))


def _canonical(text: str) -> str | None:
    """A name as patterns see it: one name may be spelled in several ways. None: it is none, and refused for that."""
    try:
        return name_to_text(name_from_text(text))
    except BadRequest:
        return None
