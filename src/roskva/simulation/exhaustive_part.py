"""One client of the exhaustive search with all that belongs to it, and everything that may happen to it.

A part is a client's core and application, its desk at the Registrar, its copy in the Matcher's row, its messages in flight, its records
in the feed, what tasks have yet to tell it, a clock, and the faults that may still happen to it. Parts are numbered as they are met; what
an input makes of a client, a desk or a part is worked out once, by the real cores, and remembered. A part knows nothing of the others, nor
which of them it is; of what is shared it sees the latest published version, and that only when its application is told something.

Messages of a connection are a queue or a bag. In a queue a message is lost when its turn comes: until then nobody can tell. Not here:
what is shared, and the order in which things happen (`exhaustive_world`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from roskva.matcher.cells import registration_cell
from roskva.model import DROP_COPY
from roskva.protocol.messages import ClientMessage, encode
from roskva.registrar.row import ClientRow
from roskva.simulation.exhaustive_client import OBJECT, ClientSide, form_of
from roskva.simulation.exhaustive_desk import KEYRING, Desk
from roskva.simulation.exhaustive_rows import Died
from roskva.simulation.exhaustive_state import (
    DELAY,
    LOSE_TO_CLIENT,
    LOSE_TO_SERVER,
    REPEAT_TO_CLIENT,
    REPEAT_TO_SERVER,
    UNREGISTER,
    Actor,
    ClientTurn,
    DeskTurn,
    Move,
    Numbered,
    Packets,
    Part,
    Prospects,
    Size,
    Tell,
    spent,
    with_copy,
    without,
)
from roskva.table.interface import Cell

TIMEOUTS_MAX: Final = 8  # of one client: more than any repair takes
_PUBLISHED_BITS: Final = 4
VERSIONS_MAX: Final = (1 << _PUBLISHED_BITS) - 1
_NOTIFIES: Final = b'"notify":'


class Parts:
    def __init__(self, size: Size) -> None:
        self.size = size
        self.clients: Numbered[ClientSide] = Numbered()
        self.desks: Numbered[Desk] = Numbered()
        self.parts: Numbered[Part] = Numbered()
        self.faults_were_seen = False  # by any client, ever: few states need to be asked
        self._moves: dict[int, list[Move]] = {}
        self._midst: dict[int, list[Move]] = {}
        self._client_turns: dict[tuple[object, ...], ClientTurn] = {}
        self._desk_turns: dict[tuple[object, ...], DeskTurn] = {}
        self._remembered: dict[tuple[object, ...], int] = {}
        self._promises: dict[int, str] = {}
        self._prospects: dict[tuple[int, int, tuple[str, ...]], Prospects] = {}

    def __getitem__(self, number: int) -> Part:
        return self.parts.things[number]

    def first(self, faults: tuple[str, ...]) -> int:
        client, desk = ClientSide(self.size.states_versions), Desk()
        numbers = self.clients.number(client, form_of(client)), self.desks.number(desk, form_of(desk.form()))
        return self._at_client(Part(*numbers, faults=faults), 0, "start")

    def number(self, part: Part) -> int:
        return self.parts.number(part, part)

    def changed(self, number: int, **fields: object) -> int:
        return self.number(self[number]._replace(**fields))  # type: ignore[arg-type]

    # What may happen to it.

    def moves(self, number: int, published: int) -> list[Move]:
        """Everything that may happen to this part alone."""
        part = self.parts.things[number]
        seen = published if any(_NOTIFIES in data for _, data in part.to_client) else 0
        key = number << _PUBLISHED_BITS | seen
        found = self._moves.get(key)
        if found is None:
            found = self._moves[key] = [*self._client_moves(part, seen), *self._desk_moves(part), *self._faults(part)]
        return found

    def dying_in_the_midst(self, number: int) -> list[Move]:
        """What the Registrar may do for this client and die of, between two durable steps."""
        found = self._midst.get(number)
        if found is None:
            found = self._midst[number] = list(self._deaths(self[number]))
        return found

    def prospects(self, number: int, published: int, deaths: tuple[str, ...]) -> Prospects:
        """Whether this client may fetch, and whether its desk may append, before tasks or publishes do anything.

        `deaths`: those of the Registrar that may happen meanwhile. Nothing leads back to a part that was left: messages run out.
        """
        key = (number, published, deaths)
        found = self._prospects.get(key)
        if found is None:
            moves = self.moves(number, published)
            fetches, appends = any(move.fetches for move in moves), any(move.appends for move in moves)
            later = [(move.part, deaths) for move in moves]
            for death in deaths:
                fewer = spent(deaths, death)
                later.append((self.registrar_dies(number, death == "registrar"), fewer))
                for move in self.dying_in_the_midst(number) if death == "registrar" else ():
                    appends = appends or move.appends
                    later.append((move.part, fewer))
            for after, left in later:
                if fetches and appends:
                    break
                more = self.prospects(after, published, left)
                fetches, appends = fetches or more.fetches, appends or more.appends
            found = self._prospects[key] = Prospects(fetches, appends)
        return found

    def _in_flight(self, packets: Packets, sent: Sequence[tuple[int, bytes]]) -> Packets:
        """A bag, in which order means nothing; or a queue."""
        return (*packets, *sent) if self.size.ordered else tuple(sorted((*packets, *sent)))

    def _arriving(self, packets: Packets) -> Iterable[tuple[int, bytes]]:
        return packets[:1] if self.size.ordered else dict.fromkeys(packets)

    def _client_moves(self, part: Part, published: int) -> Iterator[Move]:
        for packet in self._arriving(part.to_client):
            taken = part._replace(to_client=without(part.to_client, packet))
            yield self._client_move(("to client", packet), taken, published, "receive", packet[1])
            if REPEAT_TO_CLIENT in part.faults:
                kept = part._replace(faults=spent(part.faults, REPEAT_TO_CLIENT))
                move = self._client_move((REPEAT_TO_CLIENT, packet), kept, published, "receive", packet[1])
                yield move._replace(free=False)
            if LOSE_TO_CLIENT in part.faults:
                lost = taken._replace(faults=spent(part.faults, LOSE_TO_CLIENT))
                yield Move((LOSE_TO_CLIENT, packet), self.number(lost), Actor.CLIENT, free=False)
        client = self.clients.things[part.client]
        for index, (notification, _) in enumerate(client.waiting):
            yield self._client_move(("acknowledge", notification.version), part, published, "acknowledge", index)
        if not client.registered:
            yield self._client_move(("register",), part, published, "register")

    def _client_move(self, what: tuple[object, ...], part: Part, published: int, work: str, *arguments: object) -> Move:
        after = self._at_client(part, published, work, *arguments)
        turn = self._client_turn(part, published, work, arguments)
        return Move(what, after, Actor.BOTH if turn.hung_up else Actor.CLIENT, fetches=turn.fetched)

    def _desk_moves(self, part: Part) -> Iterator[Move]:
        for what, taken, turn in self._desk_works(part):
            yield Move(what, self._after_desk(taken, turn), Actor.DESK, appends=bool(turn.events))
        for packet in self._arriving(part.to_server):
            if REPEAT_TO_SERVER in part.faults:
                kept = part._replace(faults=spent(part.faults, REPEAT_TO_SERVER))
                turn = self._desk_turn(part, None, "receive", *packet)
                yield Move((REPEAT_TO_SERVER, packet), self._after_desk(kept, turn), Actor.DESK, free=False, appends=bool(turn.events))
            if LOSE_TO_SERVER in part.faults:
                lost = part._replace(to_server=without(part.to_server, packet), faults=spent(part.faults, LOSE_TO_SERVER))
                yield Move((LOSE_TO_SERVER, packet), self.number(lost), Actor.DESK, free=False)

    def _desk_works(self, part: Part) -> Iterator[tuple[tuple[object, ...], Part, DeskTurn]]:
        """What the Registrar may do for this client; with the part as it is then, its desk aside."""
        desk = self.desks.things[part.desk]
        for packet in self._arriving(part.to_server):
            taken = part._replace(to_server=without(part.to_server, packet))
            yield ("to server", packet), taken, self._desk_turn(part, None, "receive", *packet)
        if desk.ack_cells:
            yield ("flush",), part, self._desk_turn(part, None, "flush")
        if any(desk.marks.values()):
            yield ("marks",), part, self._desk_turn(part, None, "recover")
        for tell in part.tells:
            others = tuple(one for one in part.tells if one is not tell)
            if tell.asked:
                turn = self._desk_turn(part, None, "finish", tell.task, tell.told.client)
            else:
                turn = self._desk_turn(part, None, "begin", tell.task, tell.told)
            if turn.answer is None:
                others = tuple(sorted((*others, tell._replace(asked=True))))
            after = part._replace(tells=others)
            if turn.answer == DROP_COPY:
                after = with_copy(after, registration_cell(tell.told.client, tell.told.seqno, "", False))
            yield ("settle" if tell.asked else "tell", tell), after, turn

    def _faults(self, part: Part) -> Iterator[Move]:
        for fault in dict.fromkeys(part.faults):
            rest = part._replace(faults=spent(part.faults, fault))
            if fault == "client":
                yield Move(("client dies", True), self._at_client(self._hang_up(rest), 0, "die"), Actor.BOTH, free=False)
            elif fault == "half-open":
                left = rest._replace(to_client=(), to_server=())
                yield Move(("client dies", False), self._at_client(left, 0, "die"), Actor.BOTH, free=False)
            elif fault == "blind":
                yield from (self._blind(rest, tell) for tell in part.tells)
            elif fault == UNREGISTER and self.clients.things[part.client].registered:
                yield Move((UNREGISTER,), self._at_client(rest, 0, "unregister"), Actor.CLIENT, free=False)
            elif fault == DELAY and part.timeouts < TIMEOUTS_MAX:
                ticked = self.time_passes(self.number(rest))
                yield Move(("time", (-1, part.now, self[ticked].now)), ticked, Actor.BOTH, free=False, appends=True)

    def _blind(self, part: Part, tell: Tell) -> Move:
        turn = self._desk_turn(part, None, "blind", tell.task, tell.told)
        rest = part._replace(tells=tuple(one for one in part.tells if one is not tell))
        if turn.answer == DROP_COPY:
            rest = with_copy(rest, registration_cell(tell.told.client, tell.told.seqno, "", False))
        return Move(("blind", tell), self._after_desk(rest, turn), Actor.DESK, free=False)

    def _deaths(self, part: Part) -> Iterator[Move]:
        for what, taken, turn in self._desk_works(part):
            for dies_after in range(1, turn.steps):
                dead = self._desk_turn(part, dies_after, *turn.work)
                after = self._after_desk(taken._replace(tells=part.tells), dead)
                died = self.registrar_dies(after, True)
                yield Move((*what, "dies after step", dies_after), died, Actor.BOTH, free=False, appends=bool(dead.events))

    # What inputs make of clients and desks.

    def _client_turn(self, part: Part, published: int, work: str, arguments: tuple[object, ...]) -> ClientTurn:
        key = (part.client, part.now, published, work, arguments)
        turn = self._client_turns.get(key)
        if turn is None:
            client = self.clients.copy(part.client)
            client.published = published
            getattr(client, work)(part.now, *arguments)
            sent, hung_up, fetched = tuple(client.sent), client.hung_up, client.fetched
            client.published, client.sent, client.hung_up, client.fetched = 0, [], False, False
            self.faults_were_seen = self.faults_were_seen or bool(client.fault)
            turn = self._client_turns[key] = ClientTurn(self.clients.number(client, form_of(client)), sent, hung_up, fetched)
        return turn

    def _at_client(self, part: Part, published: int, work: str, *arguments: object) -> int:
        turn = self._client_turn(part, published, work, arguments)
        if turn.hung_up:
            part = self._hang_up(part)
        return self.number(part._replace(client=turn.client, to_server=self._in_flight(part.to_server, turn.sent)))

    def _hang_up(self, part: Part) -> Part:
        """The connection is gone, with all that was in it, and the Registrar was told."""
        turn = self._desk_turn(part, None, "closed", self.clients.things[part.client].link)
        return part._replace(desk=turn.desk, to_server=(), to_client=())

    def _desk_turn(self, part: Part, dies_after: int | None, work: str, *arguments: object) -> DeskTurn:
        """The Registrar does something; or dies in the midst of it, between two durable steps."""
        key = (part.desk, part.now, dies_after, work, arguments)
        turn = self._desk_turns.get(key)
        if turn is None:
            desk = self.desks.copy(part.desk)
            desk.now, desk.dies_after = part.now, dies_after
            answer = None
            with contextlib.suppress(Died):
                answer = getattr(desk, work)(*arguments)
            sent, events, steps = tuple(desk.sent), tuple(desk.events), desk.steps
            desk.sent, desk.events, desk.steps, desk.now, desk.dies_after = [], [], 0, 0.0, None
            after = self.desks.number(desk, form_of(desk.form()))
            turn = self._desk_turns[key] = DeskTurn(after, sent, events, steps, answer, (work, *arguments))
        return turn

    def _after_desk(self, part: Part, turn: DeskTurn) -> int:
        link = self.clients.things[part.client].link
        sent = [packet for packet in turn.sent if packet[0] == link]
        queued = part.queued + tuple(event for event in turn.events if event not in part.queued)
        return self.number(part._replace(desk=turn.desk, to_client=self._in_flight(part.to_client, sent), queued=queued))

    # What happens to every part at once.

    def registrar_dies(self, number: int, links_break: bool) -> int:
        """With all that it had in memory. Connections break with it, or live on in other gateways, which announce them."""
        key = ("registrar dies", number, links_break)
        if key not in self._remembered:
            part = self[number]
            turn = self._desk_turn(part, None, "die")
            part = part._replace(desk=turn.desk, tells=tuple(tell._replace(asked=False) for tell in part.tells))
            client = self.clients.things[part.client]
            if links_break:
                after = self._at_client(part._replace(to_server=(), to_client=()), 0, "reconnect")
            else:
                announced = [(client.link, encode(ClientMessage(token=token)))] if (token := client.core._outbox.token) else []
                after = self.number(part._replace(to_server=self._in_flight(part.to_server, announced)))
            self._remembered[key] = after
        return self._remembered[key]

    def with_written(self, number: int, cell: Cell) -> int:
        return self.number(with_copy(self[number], cell))

    def with_tells(self, number: int, tells: list[Tell]) -> int:
        return self.changed(number, tells=tuple(sorted((*self[number].tells, *tells)))) if tells else number

    def with_records_taken(self, number: int) -> int:
        """By the batch that begins."""
        return self.changed(number, taken=self[number].queued, queued=())

    def without_tells(self, number: int) -> int:
        return self.changed(number, tells=(), desk=self._desk_turn(self[number], None, "forget_calls").desk)

    def orphaned(self, number: int) -> int:
        """Calls that were begun are not found again by their new names: an orphan asks anew, as after a lost answer."""
        part = self[number]
        tells = tuple(sorted(tell._replace(task=tell.task + "'", asked=False) for tell in part.tells))
        desk = self._desk_turn(part, None, "forget_calls").desk
        return self.changed(number, tells=tells, orphaned=part.taken, desk=desk)

    # Time, and what must hold.

    def time_passes(self, number: int) -> int:
        """To the next deadline of the client or of its desk, which act then."""
        part = self[number]
        dues = self.clients.things[part.client].core.next_deadline(), self.desks.things[part.desk].next_deadline()
        now = max(part.now, min((due for due in dues if due is not None), default=part.now))
        part = part._replace(now=now, timeouts=part.timeouts + 1)
        due = self.desks.things[part.desk].next_deadline()
        if due is not None and due <= now:
            part = self[self._after_desk(part, self._desk_turn(part, None, "tick"))]
        due = self.clients.things[part.client].core.next_deadline()
        return self.number(part) if due is None or due > now else self._at_client(part, 0, "tick")

    def fault(self, number: int) -> str:
        """What no client may ever see."""
        return self.clients.things[self[number].client].fault

    def broken_promise(self, number: int, published: int) -> str:
        """What is not as it must be once everything is at rest; empty: all is well."""
        key = number << _PUBLISHED_BITS | published
        if key not in self._promises:
            self._promises[key] = self._find_broken_promise(self[number], published)
        return self._promises[key]

    def _find_broken_promise(self, part: Part, published: int) -> str:
        client, desk = self.clients.things[part.client], self.desks.things[part.desk]
        if client.kept < published:
            return f"the application has version {client.kept}, and never learned of version {published}"
        if not client.core.confirmed(part.now):
            return "the client was not told that its registrations are those of the Registrar"
        name = KEYRING.verify(client.core._outbox.token).client
        row = ClientRow(name, desk.rows.get(name, {}).values())
        standing = row.standing(OBJECT)
        if standing is None or not standing.registered:
            return "the Registrar's row has no registration"
        if row.pending_count:
            return "the registration is pending for ever"
        if waiting := list(row.waiting()):
            return f"{waiting} wait for ever in the client's row"
        if registration_cell(name, standing.seqno, "device", True) not in part.copies:
            return "the Matcher's copy is not the registration that stands"
        return ""
