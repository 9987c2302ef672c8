"""How a transcript calls things: messages, cells, records and propagations, each in one short line.

A token is written as client id and session (id-1/2), a seqno as session and counter (2.1), a summary as the set that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from roskva.matcher.cells import VERSION, read_copies, read_version
from roskva.matcher.core import Batch
from roskva.model import (
    DROP_COPY,
    OUTCOME_COVERED,
    OUTCOME_UNKNOWN,
    OUTCOME_UNREGISTERED,
    SETTLED,
    UNAVAILABLE,
    ObjectKey,
    Propagation,
    Registration,
    Update,
    name_of,
    name_to_text,
    session_of,
)
from roskva.protocol.messages import Ack, ClientMessage, Notify, Register, ServerMessage, Status, Summary, Sync, SyncObject, SyncRequest
from roskva.protocol.summaries import SetDigest
from roskva.protocol.tokens import Keyring
from roskva.registrar import cells as registrar_cells
from roskva.registrar.cells import (
    ACKNOWLEDGED,
    CREATED,
    LOG,
    PENDING,
    REG,
    UNKNOWN,
    interval_ms_of,
    is_registered,
    read_created,
    read_log_name,
    read_pending,
)
from roskva.table.interface import Cell, RowKey

NAMES_SHOWN_MAX: Final = 4
WORDS_SHOWN_MAX: Final = 6
VERDICTS: Final = {SETTLED: "settled", DROP_COPY: "drop the copy", UNAVAILABLE: "unavailable, ask again"}


def text_of(key: ObjectKey) -> str:
    return name_to_text(name_of(key))


def seqno_text(seqno: int) -> str:
    return f"{session_of(seqno)}.{seqno & 0xFFFFFFFF}"


def seqno_from_text(text: str) -> int:
    session, counter = text.split(".")
    return int(session) << 32 | int(counter)


def some(words: Iterable[str]) -> str:
    """A list in a line; a long one by its ends."""
    words = list(words)
    if len(words) > WORDS_SHOWN_MAX:
        words = [*words[:2], f"... {len(words) - 3} more ...", words[-1]]
    return ", ".join(words)


class Summaries:
    """Which set a summary stands for: those sets are known that a client ever wished for, or a row ever held."""

    def __init__(self) -> None:
        self._names: dict[Summary, str] = {SetDigest().summary(): "{}"}

    def learn(self, names: Iterable[bytes]) -> None:
        sorted_names = sorted(names)
        texts = [name_to_text(name) for name in sorted_names]
        short = ", ".join(texts) if len(texts) <= NAMES_SHOWN_MAX else f"{len(texts)} objects"
        self._names[SetDigest(sorted_names).summary()] = f"{{{short}}}"

    def text(self, summary: Summary | None) -> str:
        if summary is None:
            return "no summary"
        return self._names.get(summary) or f"{{{summary.count} objects, {summary.digest[:4]}}}"


class Speech:
    """Messages as lines."""

    def __init__(self, keyring: Keyring, summaries: Summaries) -> None:
        self._keyring = keyring
        self._summaries = summaries

    def token(self, token: str) -> str:
        claims = self._keyring.verify(token)
        return f"{claims.client}/{claims.session}"

    def of_client(self, message: ClientMessage) -> str:
        parts = [f"register #{one.op} {_held(one)}" for one in message.register]
        parts += [f"unregister #{one.op} {one.object}" for one in message.unregister]
        parts = [some(parts)] if parts else []
        parts += [f"ack {told(one)}" for one in message.acks]
        parts += [_sync(message.sync)] if message.sync is not None else []
        if message.init is not None:
            prior = f" (was {self.token(message.init.prior)})" if message.init.prior else ""
            return "; ".join([f"init {message.init.nonce}{prior}, wishes {self._summaries.text(message.summary)}", *parts])
        return "; ".join([f"{self.token(message.token)} wishes {self._summaries.text(message.summary)}", *parts])

    def of_server(self, message: ServerMessage) -> str:
        if message.start_anew is not None:
            keep = "keep the token as prior" if message.start_anew.keep else "forget the token"
            return f"{self.token(message.token)} start anew: {message.start_anew.code}, {keep}"
        if message.error is not None:
            who = self.token(message.token) if message.token else "refused"
            return f"{who} error: {message.error.code}{', transient' if message.error.transient else ''}"
        unsettled = f", {message.unsettled} unsettled" if message.unsettled else ""
        head = f"has {self._summaries.text(message.summary)}{unsettled}"
        if message.grant is not None:
            head = f"grant {self.token(message.grant.token)} for {message.grant.nonce}, {head}"
        else:
            head = f"{self.token(message.token)} {head}"
        parts = [some(f"notify {told(one)}" for one in message.notify)] if message.notify else []
        parts += [some(_status(one) for one in message.status)] if message.status else []
        parts += [_sync_request(message.sync_request)] if message.sync_request is not None else []
        return "; ".join([head, *parts])


def told(one: Notify | Ack) -> str:
    version = "unknown" if one.version is None else one.version
    return f"{one.object}@{version} ({seqno_text(int(one.seqno))})"


def _held(one: Register) -> str:
    held = "" if one.version is None else f" holding {one.version}"
    return one.object + held + ("" if one.notify_interval_ms is None else f" every {one.notify_interval_ms} ms")


def _status(one: Status) -> str:
    if one.state != "failed":
        return f"{one.object} is {one.state}"
    return f"{one.object} failed: {one.code}{', transient' if one.transient else ''}"


def _named(one: SyncObject) -> str:
    return one.object + ("" if one.notify_interval_ms is None else f" every {one.notify_interval_ms} ms")


def _sync(sync: Sync) -> str:
    if sync.summaries is not None:
        return f"sync #{sync.op} summaries of {len(sync.summaries)} buckets"
    where = "" if sync.buckets is None else f" in bucket {some(map(str, sync.buckets))}"
    return f"sync #{sync.op}{where} {{{some(_named(one) for one in sync.objects or [])}}}"


def _sync_request(request: SyncRequest) -> str:
    if request.buckets is None:
        return "please sync"
    return f"sync #{request.op} differs in bucket {some(map(str, request.buckets))}"


def row_name(row: RowKey) -> str:
    return row.key.decode() if row.table == "registrar" else text_of(ObjectKey(row.key))


def cell_text(row: RowKey, cell: Cell) -> str:
    return _matcher_cell(cell) if row.table == "matcher" else _registrar_cell(cell)


def _matcher_cell(cell: Cell) -> str:
    row = {cell.name: cell}
    if cell.name == VERSION:
        version = read_version(row)
        assert version is not None
        return f"version@{version.version}" + (f" by {version.source}" if version.source else "")
    client = cell.name.removeprefix(b"reg:").decode()
    copies = read_copies(row)
    if not copies:
        return f"reg:{client} unregistered@{seqno_text(cell.timestamp)}"
    return f"reg:{client} registered@{seqno_text(cell.timestamp)} ({copies[0].device})"


def _registrar_cell(cell: Cell) -> str:
    if cell.name == CREATED:
        created = read_created(cell)
        assert created is not None
        return f"created {created.application}/{created.device}"
    if cell.name == registrar_cells.SEEN:
        return f"seen@{cell.timestamp}"
    if cell.name == registrar_cells.SEQNO:
        return f"seqno@{seqno_text(cell.timestamp)}"
    if cell.name.startswith(REG):
        state = "registered" if is_registered(cell) else "unregistered"
        every = f" every {interval_ms_of(cell)} ms" if interval_ms_of(cell) else ""
        return f"reg:{text_of(ObjectKey(cell.name[len(REG) :]))} {state}@{seqno_text(cell.timestamp)}{every}"
    if cell.name.startswith(PENDING):
        pending = read_pending(cell)
        state = "done" if pending is None else "open"
        if pending is not None and (pending.repair or pending.held is not None):
            state += " (repair)" if pending.repair else f" (holds {pending.held})"
        return f"pending:{text_of(ObjectKey(cell.name[len(PENDING) :]))} {state}@{seqno_text(cell.timestamp)}"
    key, seqno, unknown = read_log_name(cell)
    state = "acknowledged" if (cell.value or b"").startswith(ACKNOWLEDGED) else "waiting"
    assert cell.name.startswith((LOG, UNKNOWN))
    if unknown:
        return f"unknown:{text_of(key)} {state}@{seqno_text(seqno)}"
    return f"log:{text_of(key)}:{seqno_text(seqno)} {state}@{cell.timestamp}"


def update_text(update: Update) -> str:
    return f"{text_of(update.object)}@{update.version}" + (f" by {update.source}" if update.source else "")


def registration_text(one: Registration) -> str:
    verb = "registers" if one.registered else "unregisters"
    held = "" if one.held is None else f", holding {one.held}"
    return f"{one.client} {verb} {text_of(one.object)} ({seqno_text(one.seqno)}){held}{', a repair' if one.repair else ''}"


def batch_text(batch: Batch) -> str:
    changes = [
        f"{text_of(key)}@{change.version}" + (f" by {change.source} alone" if change.sole_source else "")
        for key, change in batch.changes.items()
    ]
    return some([*changes, *map(registration_text, batch.registrations.values())])


def propagation_text(one: Propagation) -> str:
    who = f"{one.client} {text_of(one.object)}"
    seqno = f"({seqno_text(one.seqno)})"
    if one.outcome == OUTCOME_UNREGISTERED:
        return f"{who} unregistered {seqno}"
    if one.outcome == OUTCOME_COVERED:
        return f"{who} registered {seqno}, holds what there is"
    if one.outcome == OUTCOME_UNKNOWN:
        return f"{who}@unknown {seqno}"
    return f"{who}@{one.version} {seqno}"
