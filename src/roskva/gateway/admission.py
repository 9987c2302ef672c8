"""How much one address, one application and one client may take of a gateway: connections, handshakes, messages.

Whoever has no session is a stranger: it counts for its address only, and not for long (gateway/server.py). A connection counts for an
application while a session of it speaks over the connection, as the Registrar notes there, or the one at another gateway says.
Everything here is counted per connection that exists, and forgotten with it. What an idle connection costs is two references: its address,
and the party that it speaks for, which all of the same kind share. Messages are counted in rounds of a sweep: only a connection that said
more in one than any application allows in a second has a bucket, until that is full again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from roskva.access.limits import Bucket, Buckets
from roskva.config import ApplicationSettings, Settings
from roskva.errors import RateLimited, TooManyConnections
from roskva.gateway.addresses import Addresses
from roskva.gateway.origins import Origins
from roskva.gateway.routing import Connection, Party, error_message
from roskva.gateway.unfinished import Unfinished
from roskva.registrar.sessions import Session
from roskva.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from roskva.gateway.server import AnyConnection, Port

HANDSHAKES_BURST: Final = 20
MESSAGES_BURST: Final = 10
REFUSED_BURSTS_MAX: Final = 10  # messages beyond the limit, in bursts, until the connection is closed
TOLD_EVERY_S: Final = 1.0


class _Pace(Bucket):
    """Of a connection that said much lately."""

    __slots__ = ("refused", "told_s")

    def __init__(self, rate_per_s: float, burst: float) -> None:
        super().__init__(rate_per_s, burst)
        self.refused = 0
        self.told_s = float("-inf")

    def is_full(self, now_s: float) -> bool:
        return self._full_at_s <= now_s


class Admission:
    def __init__(self, settings: Settings, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self.addresses = Addresses(settings)
        self.origins = Origins(settings, metrics)
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        rate = settings.handshakes_per_address_per_s
        self._handshakes = Buckets(rate, max(1.0, HANDSHAKES_BURST * rate))
        self._per_address_max = settings.connections_per_address_max
        self._of_address: dict[str, int] = {}
        self._of_application: dict[str, int] = {}  # those with a session
        self.unfinished = Unfinished(metrics)
        self._surplus: list[Connection] = []  # that got theirs when there were enough: closed at the next sweep
        self.strangers: dict[Connection, float] = {}  # without a session, since when
        self._parties: dict[Party, Party] = {}  # as many as there are origins and applications in the settings
        self._spoken: dict[Connection, int] = {}  # messages since the last sweep
        self._paces: dict[Connection, _Pace] = {}
        self._free = 0  # messages in a round that no application refuses
        self._look_at_rates()

    def party(self, origin: str, application: str = "") -> Party:
        party = Party(origin, application)
        return self._parties.setdefault(party, party)

    def has_room(self, address: str) -> bool:
        """Whether one more connection of this address may be. Counts the refusal."""
        if not address or self._of_address.get(address, 0) < self._per_address_max:
            return True
        self._metrics.limited_connections_of_address += 1
        return False

    def count(self, address: str) -> None:
        if address:
            self._of_address[address] = self._of_address.get(address, 0) + 1

    def leave(self, address: str) -> None:
        if address:
            _less(self._of_address, address)

    def connections_of(self, application: str) -> int:
        return self._of_application.get(application, 0)

    def handshake(self, connection: Connection) -> None:
        """Raises RateLimited."""
        if connection.address:
            wait_s = self._handshakes.take(connection.address, self._clock())
            if wait_s > 0:
                self._metrics.limited_handshakes += 1
                raise RateLimited("handshakes_per_address_per_s", wait_s)

    def name(self, connection: Connection, application: str) -> None:
        """The connection wants to speak for this application. Raises OriginRefused, TooManyConnections."""
        before = connection.party
        self.origins.check(before.origin, application)
        settings = self._settings.applications.get(application)
        if settings is None or before.application == application:
            return  # what is not known the Registrar says
        if 0 < settings.connections_max <= self._of_application.get(application, 0):
            self._metrics.limited_connections_of_application += 1
            raise TooManyConnections("connections_max of the application")

    def opened(self, connection: Connection) -> None:
        self.strangers[connection] = self._clock()

    def session_began(self, connection: Connection, application: str) -> None:
        """A session of this application speaks over the connection."""
        self.strangers.pop(connection, None)
        self.unfinished.done(connection)
        before = connection.party
        if before.application == application:
            return
        if before.application:
            _less(self._of_application, before.application)
        count = self._of_application[application] = self._of_application.get(application, 0) + 1
        connection.party = self.party(before.origin, application)
        settings = self._settings.applications.get(application)
        if settings is not None and 0 < settings.connections_max < count:
            # Many came at once. Not closed here: the Registrar is in the middle of it.
            self._surplus.append(connection)

    def session_ended(self, connection: Connection) -> None:
        """The connection stays, for a while: its client may begin again."""
        party = connection.party
        if party.application:
            _less(self._of_application, party.application)
            connection.party = self.party(party.origin)
        if connection not in self.strangers:
            self.strangers[connection] = self._clock()

    def finished(self, connection: Connection) -> None:
        """Its message is complete. Its buffer stays as large as it has become: a stranger's still counts."""
        if connection not in self.strangers:
            self.unfinished.done(connection)

    def gone(self, connection: Connection) -> None:
        self.leave(connection.address)
        if connection.party.application:
            _less(self._of_application, connection.party.application)
            connection.party = self.party(connection.party.origin)
        self.strangers.pop(connection, None)
        self.unfinished.done(connection)
        self._spoken.pop(connection, None)
        self._paces.pop(connection, None)

    def spoke(self, connection: Connection) -> bool:
        """A message or control frame came: whether it may be looked at. If not, the client is told, once a second."""
        count = self._spoken[connection] = self._spoken.get(connection, 0) + 1
        return count <= self._free or self._paced(connection, count)

    def _paced(self, connection: Connection, count: int) -> bool:
        now_s = self._clock()
        pace = self._paces.get(connection)
        if pace is None:
            rate = self._rate(self._settings.applications.get(connection.party.application))
            pace = self._paces[connection] = _Pace(rate, max(1.0, MESSAGES_BURST * rate))
            pace.take(now_s, count - 1)
        wait_s = pace.take(now_s)
        if wait_s == 0:
            return True
        self._metrics.limited_messages += 1
        pace.refused += 1
        if pace.refused > REFUSED_BURSTS_MAX * pace.burst:
            connection.close(RateLimited.code)
        elif now_s - pace.told_s >= TOLD_EVERY_S:
            pace.told_s = now_s
            connection.send(error_message(RateLimited("messages_per_s_max", wait_s), connection.token))
        return False

    def sweep(self, now_s: float) -> None:
        """Once a second."""
        self._look_at_rates()
        surplus, self._surplus = self._surplus, []
        for connection in surplus:
            if connection.party.application:  # it still has its session
                self._metrics.limited_connections_of_application += 1
                connection.send(error_message(TooManyConnections("connections_max of the application"), connection.token))
                connection.close(TooManyConnections.code)
        for connection in [connection for connection, pace in self._paces.items() if pace.is_full(now_s)]:
            del self._paces[connection]
        # Whoever has a bucket takes from it with every message.
        self._spoken = dict.fromkeys(self._paces, self._free)

    def _look_at_rates(self) -> None:
        self._free = int(self._rate(None))

    def _rate(self, settings: ApplicationSettings | None) -> float:
        """Of one application; the lowest of all, if it is not known yet."""
        if settings is not None:
            return settings.messages_per_s_max
        return min((application.messages_per_s_max for application in self._settings.applications.values()), default=1.0)


class Noted:
    """A connection's `session`: the Registrar notes there who speaks over it, and admission counts by that."""

    __slots__ = ()
    _note: object | None
    _port: Port

    @property
    def session(self) -> object | None:
        return self._note

    @session.setter
    def session(self, note: object | None) -> None:
        before, self._note = self._note, note  # type: ignore[misc]  # a slot of each class
        if isinstance(note, Session):
            self._port.admission.session_began(cast("AnyConnection", self), note.application)
        elif isinstance(before, Session):
            self._port.admission.session_ended(cast("AnyConnection", self))


def _less(counts: dict[str, int], key: str) -> None:
    left = counts.get(key, 0) - 1
    if left > 0:
        counts[key] = left
    else:
        counts.pop(key, None)
