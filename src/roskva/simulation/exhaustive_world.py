"""The world of the exhaustive search: every state is one integer, and every state's successors can be listed.

Theory of operation. Clients share nothing but the Matcher's tasks, the feed, the published versions and the budgets. So a state is a
`Shared` and one `Part` for each client: its core and application, its desk at the Registrar, its copy in the Matcher's row, its messages
in flight (a bag: any may arrive next), its records in the feed, and what tasks have yet to tell it. Each kind is numbered as it is
met; what an input makes of a client, a desk or a part is worked out once, by the real cores, and remembered. A state packs these numbers
into one integer: two states are equal if and only if their integers are. Clients are alike, so the parts are kept in order of their numbers
(symmetry); within a part nothing tells which of the clients it is.

Time passes only when nothing else can happen, apart from `delays` (a budget like those of crashes and losses): then all that waits for the
next deadline happens. The short wait for an acknowledgement may be over at any moment.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from roskva.matcher.cells import registration_cell
from roskva.matcher.core import accept
from roskva.model import DROP_COPY
from roskva.protocol.messages import ClientMessage, encode
from roskva.registrar.row import ClientRow
from roskva.simulation.exhaustive_client import OBJECT, ClientSide, form_of
from roskva.simulation.exhaustive_desk import KEYRING, Desk, Died
from roskva.simulation.exhaustive_state import (
    CRASH,
    FEED_INCARNATION,
    FREE,
    LOSS,
    PARTITIONS,
    REGISTRAR_CRASH,
    ClientTurn,
    DeskTurn,
    Move,
    Numbered,
    Packets,
    Part,
    Records,
    Shared,
    Size,
    Step,
    Task,
    Tell,
    batch_of,
    local_cell,
    matched,
    with_copy,
    without,
)
from roskva.table.interface import Cell, wins

TASK_STEPS: Final = ("write", "read")  # the order is the whole proof of the Matcher
TIMEOUTS_MAX: Final = 8  # in a row, at rest: more than any repair takes
_BITS: Final = 28  # of a part's number
_MASK: Final = (1 << _BITS) - 1


class Model:
    def __init__(self, size: Size) -> None:
        self.size = size
        self.clients: Numbered[ClientSide] = Numbered()
        self.desks: Numbered[Desk] = Numbered()
        self.parts: Numbered[Part] = Numbered()
        self.shareds: Numbered[Shared] = Numbered()
        self._moves: dict[tuple[int, float, int, int], list[Move]] = {}
        self._client_turns: dict[tuple[object, ...], ClientTurn] = {}
        self._desks_turns: dict[tuple[object, ...], DeskTurn] = {}
        self._written: dict[tuple[object, ...], list[Cell]] = {}
        self._matched: dict[tuple[Task, Records, Cell | None, tuple[tuple[Cell, ...], ...]], list[list[Tell]]] = {}
        self._remembered: dict[tuple[object, ...], int] = {}
        self._promises: dict[tuple[int, int, float], str] = {}

    # States.

    def first(self) -> int:
        client, desk = ClientSide(self.size.states_versions), Desk()
        numbers = self.clients.number(client, form_of(client)), self.desks.number(desk, form_of(desk.form()))
        part = self._at_client(Part(*numbers), 0.0, 0, "start")
        shared = Shared(crashes=self.size.crashes, losses=self.size.losses, delays=self.size.delays)
        return self.pack(shared, (part,) * self.size.clients)

    def pack(self, shared: Shared, parts: Sequence[int]) -> int:
        state = self.shareds.number(shared, shared)
        for part in sorted(parts):
            state = state << _BITS | part
        return state

    def unpack(self, state: int) -> tuple[Shared, tuple[int, ...]]:
        parts = []
        for _ in range(self.size.clients):
            parts.append(state & _MASK)
            state >>= _BITS
        return self.shareds.things[state], tuple(reversed(parts))

    def _part(self, part: Part) -> int:
        number = self.parts.number(part, part)
        assert number <= _MASK, "more parts than a state has room for"
        return number

    # What may happen.

    def steps(self, state: int) -> tuple[list[Step], bool]:
        """Everything that may happen next, and whether any of it happens without a fault or a timeout."""
        shared, parts = self.unpack(state)
        free: list[Step] = []
        faults: list[Step] = []
        for place, part in enumerate(parts):
            if place and part == parts[place - 1]:
                continue  # what happens to one of two equal clients, happens to the other
            left, right = parts[:place], parts[place + 1 :]
            for move in self.moves(part, shared.now, shared.published, FREE):
                free.append(Step(move.what, place, shared, (*left, move.part, *right)))  # noqa: PERF401
            if shared.losses:
                fewer = shared._replace(losses=shared.losses - 1)
                for move in self.moves(part, shared.now, shared.published, LOSS):
                    faults.append(Step(move.what, place, fewer, (*left, move.part, *right)))  # noqa: PERF401
            if shared.crashes:
                fewer = shared._replace(crashes=shared.crashes - 1)
                for move in self.moves(part, shared.now, shared.published, CRASH):
                    after = (*left, move.part, *right)
                    if move.cost == REGISTRAR_CRASH:
                        after = tuple(one if i == place else self.registrar_dies(one, shared.now, True) for i, one in enumerate(after))
                    faults.append(Step(move.what, place, fewer, after))
        of_all = list(self._shared_steps(shared, parts))
        if not shared.crashes and not shared.delays and (safe := _safe_step(of_all, shared)) is not None:
            return [safe], True
        free += of_all
        if shared.crashes:
            faults += self._crashes(shared._replace(crashes=shared.crashes - 1), parts)
        if free and shared.delays:
            faults.append(self.time_passes(shared._replace(delays=shared.delays - 1), parts))
        return free + faults, bool(free)

    def time_passes(self, shared: Shared, parts: tuple[int, ...]) -> Step:
        """To the next deadline of anybody, who acts then."""
        dues = [due for part in parts if (due := self._deadline(part)) is not None]
        now = max(shared.now, min(dues, default=shared.now))
        after = tuple(self._ticked(part, now) for part in parts)
        return Step(("time", now), -1, shared._replace(now=now, timeouts=shared.timeouts + 1), after)

    def _shared_steps(self, shared: Shared, parts: tuple[int, ...]) -> Iterator[Step]:
        if shared.published < self.size.versions:
            yield Step(("publish", shared.published + 1), -1, shared._replace(published=shared.published + 1), parts)
        mine = [task for task in shared.tasks if not task.name.endswith("'")]
        if not mine:
            yield from self._begin(shared, parts)
        elif all(self._told(task, parts) for task in mine):
            others = tuple(task for task in shared.tasks if task.name.endswith("'"))
            done = shared._replace(committed=shared.begun, begun=-1, tasks=others)
            yield Step(("commit",), -1, done, tuple(self._with(part, taken=()) for part in parts))
        for task in shared.tasks:
            if task.step < len(TASK_STEPS):
                yield self._task_step(shared, task, parts)
            elif task.name.endswith("'") and self._told(task, parts):
                left = shared._replace(tasks=tuple(one for one in shared.tasks if one is not task))
                yield Step(("orphan ends", task.name), -1, left, tuple(self._without_orphans(part, task) for part in parts))

    def _begin(self, shared: Shared, parts: tuple[int, ...]) -> Iterator[Step]:
        """A batch takes all that is there; one whose driver died is taken again, the same range."""
        after = parts
        if shared.begun < 0:
            if shared.published == shared.committed and not any(self.parts.things[part].queued for part in parts):
                return
            shared = shared._replace(begun=shared.published)
            after = tuple(self._take(part) for part in parts)
        tasks = [Task("updates", 0, shared.committed, shared.begun)] if shared.begun > shared.committed else []
        if any(self.parts.things[part].taken for part in after):
            tasks.append(Task("registrations", 0, 0, 0))
        yield Step(("begin", *(task.name for task in tasks)), -1, shared._replace(tasks=(*shared.tasks, *tasks)), after)

    def _told(self, task: Task, parts: tuple[int, ...]) -> bool:
        return task.step == len(TASK_STEPS) and not any(tell.task == task.name for part in parts for tell in self.parts.things[part].tells)

    def _task_step(self, shared: Shared, task: Task, parts: tuple[int, ...]) -> Step:
        what = TASK_STEPS[task.step]
        later = tuple(sorted(one._replace(step=one.step + 1) if one is task else one for one in shared.tasks))
        if what == "read":
            return Step(("read", task.name), -1, shared._replace(tasks=later), self._read(shared, task, parts))
        version, after = shared.version, list(parts)
        for cell in self._writes(task, self._records(task, parts)):
            place, local = local_cell(cell)
            if place is not None:
                after[place] = self._with_copy(after[place], local)
            elif version is None or wins(cell, version):
                version = cell
        return Step(("write", task.name), -1, shared._replace(version=version, tasks=later), tuple(after))

    def _records(self, task: Task, parts: tuple[int, ...]) -> Records:
        """The registrations in a task, client by client."""
        if task.name.startswith("updates"):
            return ()
        return tuple([part.orphaned if task.name.endswith("'") else part.taken for part in map(self.parts.things.__getitem__, parts)])

    def _writes(self, task: Task, records: Records) -> list[Cell]:
        key = (task.first, task.last, records)
        if key not in self._written:
            accepted = accept(batch_of(task, records), PARTITIONS, lambda key: FEED_INCARNATION)
            self._written[key] = [cell for mutation in accepted.writes for cell in mutation.cells]
        return self._written[key]

    def _read(self, shared: Shared, task: Task, parts: tuple[int, ...]) -> tuple[int, ...]:
        """Read and match; each part is given what the task has yet to tell its client."""
        copies = tuple([self.parts.things[part].copies for part in parts])
        key = (task._replace(step=0), self._records(task, parts), shared.version, copies)
        if key not in self._matched:
            self._matched[key] = matched(*key)
        return tuple([self._with_tells(part, tells) for part, tells in zip(parts, self._matched[key], strict=True)])

    def _crashes(self, shared: Shared, parts: tuple[int, ...]) -> Iterator[Step]:
        kinds = self.size.kinds
        for links_break in (True, False):
            if ("registrar" if links_break else "announced") in kinds:
                after = tuple(self.registrar_dies(part, shared.now, links_break) for part in parts)
                yield Step(("registrar dies", links_break), -1, shared, after)
        if shared.tasks and "driver" in kinds:
            yield Step(("driver dies",), -1, shared._replace(tasks=()), tuple(map(self._drop_tells, parts)))
        if shared.tasks and "orphans" in kinds:
            orphans = tuple(task._replace(name=task.name + "'") for task in shared.tasks)
            yield Step(("driver dies, workers live on",), -1, shared._replace(tasks=orphans), tuple(map(self._orphan, parts)))

    # What may happen to one client. Worked out once for each part, and for each input of a client and of a desk.

    def moves(self, number: int, now: float, published: int, kind: int) -> list[Move]:
        key = (number, now, published, kind)
        found = self._moves.get(key)
        if found is None:
            find = (self._free_moves, self._losses, self._part_crashes)[kind]
            found = self._moves[key] = list(find(self.parts.things[number], now, published))
        return found

    def _in_flight(self, packets: Packets, sent: Sequence[tuple[int, bytes]]) -> Packets:
        """A bag, in which order means nothing; or a queue."""
        return (*packets, *sent) if self.size.ordered else tuple(sorted((*packets, *sent)))

    def _arriving(self, packets: Packets) -> Iterable[tuple[int, bytes]]:
        return packets[:1] if self.size.ordered else dict.fromkeys(packets)

    def _free_moves(self, part: Part, now: float, published: int) -> Iterator[Move]:
        for packet in self._arriving(part.to_client):
            taken = part._replace(to_client=without(part.to_client, packet))
            yield Move(("to client", packet), self._at_client(taken, now, published, "receive", packet[1]), FREE)
        for index, (notification, _) in enumerate(self.clients.things[part.client].waiting):
            yield Move(("acknowledge", notification.version), self._at_client(part, now, published, "acknowledge", index), FREE)
        for what, taken, turn in self._desk_turns(part, now):
            yield Move(what, self._after_desk(taken, turn), FREE)

    def _losses(self, part: Part, now: float, published: int) -> Iterator[Move]:
        for packet in dict.fromkeys(part.to_client):
            yield Move(("lose to client", packet), self._part(part._replace(to_client=without(part.to_client, packet))), LOSS)
        for packet in dict.fromkeys(part.to_server):
            yield Move(("lose to server", packet), self._part(part._replace(to_server=without(part.to_server, packet))), LOSS)

    def _part_crashes(self, part: Part, now: float, published: int) -> Iterator[Move]:
        kinds = self.size.kinds
        if "client" in kinds:
            yield Move(("client dies", True), self._at_client(self._hang_up(part, now), now, published, "die"), CRASH)
        if "half-open" in kinds:
            left = part._replace(to_client=(), to_server=())
            yield Move(("client dies", False), self._at_client(left, now, published, "die"), CRASH)
        for tell in part.tells if "blind" in kinds else ():
            turn = self._desk_turn(part.desk, now, None, "blind", tell.task, tell.told)
            rest = part._replace(tells=tuple(one for one in part.tells if one is not tell))
            yield Move(("blind", tell), self._after_desk(rest, turn, tell), CRASH)
        if "registrar" not in kinds:
            return
        for what, taken, turn in self._desk_turns(part, now):
            for dies_after in range(1, turn.steps):
                dead = self._desk_turn(part.desk, now, dies_after, *turn.work)
                after = self._after_desk(taken._replace(tells=part.tells), dead)
                yield Move((*what, "dies after step", dies_after), self.registrar_dies(after, now, True), REGISTRAR_CRASH)

    def _desk_turns(self, part: Part, now: float) -> Iterator[tuple[tuple[object, ...], Part, DeskTurn]]:
        """What the Registrar may do for this client; with the part as it is then, its desk aside."""
        desk = self.desks.things[part.desk]
        for packet in self._arriving(part.to_server):
            taken = part._replace(to_server=without(part.to_server, packet))
            yield ("to server", packet), taken, self._desk_turn(part.desk, now, None, "receive", *packet)
        if desk.ack_cells:
            yield ("flush",), part, self._desk_turn(part.desk, now, None, "flush")
        if any(desk.marks.values()):
            yield ("marks",), part, self._desk_turn(part.desk, now, None, "recover")
        for tell in part.tells:
            others = tuple(one for one in part.tells if one is not tell)
            if tell.asked:
                turn = self._desk_turn(part.desk, now, None, "finish", tell.task, tell.told.client)
            else:
                turn = self._desk_turn(part.desk, now, None, "begin", tell.task, tell.told)
            if turn.answer is None:
                others = tuple(sorted((*others, tell._replace(asked=True))))
            after = part._replace(tells=others)
            if turn.answer == DROP_COPY:
                after = with_copy(after, registration_cell(tell.told.client, tell.told.seqno, "", False))
            yield ("settle" if tell.asked else "tell", tell), after, turn

    def _at_client(self, part: Part, now: float, published: int, work: str, *arguments: object) -> int:
        key = (part.client, now, published, work, arguments)
        turn = self._client_turns.get(key)
        if turn is None:
            client = copy.deepcopy(self.clients.things[part.client])
            client.published = published
            getattr(client, work)(now, *arguments)
            sent, hung_up = client.sent, client.hung_up
            client.published, client.sent, client.hung_up = 0, [], False
            turn = self._client_turns[key] = ClientTurn(self.clients.number(client, form_of(client)), tuple(sent), hung_up)
        if turn.hung_up:
            part = self._hang_up(part, now)
        return self._part(part._replace(client=turn.client, to_server=self._in_flight(part.to_server, turn.sent)))

    def _hang_up(self, part: Part, now: float) -> Part:
        """The connection is gone, with all that was in it, and the Registrar was told."""
        turn = self._desk_turn(part.desk, now, None, "closed", self.clients.things[part.client].link)
        return part._replace(desk=turn.desk, to_server=(), to_client=())

    def _desk_turn(self, number: int, now: float, dies_after: int | None, work: str, *arguments: object) -> DeskTurn:
        """The Registrar does something; or dies in the midst of it, between two durable steps."""
        key = (number, now, dies_after, work, arguments)
        turn = self._desks_turns.get(key)
        if turn is None:
            desk = copy.deepcopy(self.desks.things[number])
            desk.now, desk.dies_after = now, dies_after
            answer = None
            with contextlib.suppress(Died):
                answer = getattr(desk, work)(*arguments)
            sent, events, steps = tuple(desk.sent), tuple(desk.events), desk.steps
            desk.sent, desk.events, desk.steps, desk.now, desk.dies_after = [], [], 0, 0.0, None
            after = self.desks.number(desk, form_of(desk.form()))
            turn = self._desks_turns[key] = DeskTurn(after, sent, events, steps, answer, (work, *arguments))
        return turn

    def _after_desk(self, part: Part, turn: DeskTurn, blindly: Tell | None = None) -> int:
        if blindly is not None and turn.answer == DROP_COPY:
            part = with_copy(part, registration_cell(blindly.told.client, blindly.told.seqno, "", False))
        link = self.clients.things[part.client].link
        sent = [packet for packet in turn.sent if packet[0] == link]
        queued = part.queued + tuple(event for event in turn.events if event not in part.queued)
        return self._part(part._replace(desk=turn.desk, to_client=self._in_flight(part.to_client, sent), queued=queued))

    def registrar_dies(self, number: int, now: float, links_break: bool) -> int:
        """With all that it had in memory. Connections break with it, or live on in other gateways, which announce them."""
        key = ("registrar dies", number, now, links_break)
        if key not in self._remembered:
            part = self.parts.things[number]
            turn = self._desk_turn(part.desk, now, None, "die")
            part = part._replace(desk=turn.desk, tells=tuple(tell._replace(asked=False) for tell in part.tells))
            client = self.clients.things[part.client]
            if links_break:
                after = self._at_client(part._replace(to_server=(), to_client=()), now, 0, "reconnect")
            else:
                announced = [(client.link, encode(ClientMessage(token=token)))] if (token := client.core._outbox.token) else []
                after = self._part(part._replace(to_server=self._in_flight(part.to_server, announced)))
            self._remembered[key] = after
        return self._remembered[key]

    def _deadline(self, number: int) -> float | None:
        part = self.parts.things[number]
        client, desk = self.clients.things[part.client].core.next_deadline(), self.desks.things[part.desk].next_deadline()
        return min((due for due in (client, desk) if due is not None), default=None)

    def _ticked(self, number: int, now: float) -> int:
        part = self.parts.things[number]
        due = self.desks.things[part.desk].next_deadline()
        if due is not None and due <= now:
            number = self._after_desk(part, self._desk_turn(part.desk, now, None, "tick"))
            part = self.parts.things[number]
        due = self.clients.things[part.client].core.next_deadline()
        return number if due is None or due > now else self._at_client(part, now, 0, "tick")

    # What tasks do to a part.

    def _with(self, number: int, **fields: object) -> int:
        return self._part(self.parts.things[number]._replace(**fields))  # type: ignore[arg-type]

    def _with_copy(self, number: int, cell: Cell) -> int:
        return self._part(with_copy(self.parts.things[number], cell))

    def _with_tells(self, number: int, tells: list[Tell]) -> int:
        return self._with(number, tells=tuple(sorted((*self.parts.things[number].tells, *tells)))) if tells else number

    def _take(self, number: int) -> int:
        return self._with(number, taken=self.parts.things[number].queued, queued=())

    def _orphan(self, number: int) -> int:
        """Calls that were begun are not found again by their new names: an orphan asks anew, as after a lost answer."""
        part = self.parts.things[number]
        tells = tuple(sorted(tell._replace(task=tell.task + "'", asked=False) for tell in part.tells))
        return self._with(number, tells=tells, orphaned=part.taken, desk=self._desk_turn(part.desk, 0.0, None, "forget_calls").desk)

    def _drop_tells(self, number: int) -> int:
        part = self.parts.things[number]
        return self._with(number, tells=(), desk=self._desk_turn(part.desk, 0.0, None, "forget_calls").desk)

    def _without_orphans(self, number: int, task: Task) -> int:
        return self._with(number, orphaned=()) if task.name.startswith("registrations") else number

    # What must hold.

    def fault(self, number: int) -> str:
        """What no client may ever see."""
        return self.clients.things[self.parts.things[number].client].fault

    def broken_promise(self, number: int, published: int, now: float) -> str:
        """What is not as it must be once everything is at rest; empty: all is well."""
        key = (number, published, now)
        if key not in self._promises:
            self._promises[key] = self._find_broken_promise(self.parts.things[number], published, now)
        return self._promises[key]

    def _find_broken_promise(self, part: Part, published: int, now: float) -> str:
        client, desk = self.clients.things[part.client], self.desks.things[part.desk]
        if client.kept < published:
            return f"the application has version {client.kept}, and never learned of version {published}"
        if not client.core.confirmed(now):
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


def _safe_step(steps: list[Step], shared: Shared) -> Step | None:
    """A step that may be taken alone when no crash is left: it commutes with all that may happen before it, whatever that is.

    A commit only lets the next batch begin. A task that is alone writes and reads what nobody else writes meanwhile: updates write
    versions, registrations write copies, and no other batch begins before this one is committed.
    """
    for step in steps:
        if step.what[0] == "commit" or (step.what[0] in TASK_STEPS and len(shared.tasks) == 1):
            return step
    return None
