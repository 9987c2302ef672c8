"""This gateway's membership: its heartbeats in the table, and its view of the others (the shell around
registrar/members.py).

Every `member_heartbeat_s` it writes its cell with a growing counter, reads everybody's, and calls the observers when the
set of the living changed. Cells of members gone for over an hour are deleted, one timestamp above the last: a member never
returns under its old name.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from roskva.errors import RoskvaError
from roskva.probes import reached
from roskva.registrar.members import MEMBERS_ROW, Member, MemberView, member_cell
from roskva.table.interface import Cell, Mutation, Row, RowKey

log = logging.getLogger(__name__)

FORGET_S: Final = 3_600.0
_STOP_S: Final = 2.0


class Rows(Protocol):
    """The part of the table's lanes that membership needs."""

    async def write(self, mutations: Sequence[Mutation]) -> None: ...
    async def read(self, rows: Sequence[RowKey]) -> dict[RowKey, Row]: ...


@dataclass(slots=True)
class Membership:
    rows: Rows
    view: MemberView
    member: Member
    heartbeat_s: float
    clock: Callable[[], float] = time.monotonic
    observers: list[Callable[[], None]] = field(default_factory=list)
    failing_since_s: float | None = None  # since when the table does not take our heartbeats
    _counter: int = 0
    _beaten_s: float | None = None  # when a heartbeat last succeeded
    _gone: dict[bytes, float] = field(default_factory=dict)  # cells of members that do not live, since when
    _beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """The first heartbeat; from then on this gateway is a member."""
        await self.beat()
        self._beating = asyncio.create_task(self._beat_on())

    async def stop(self) -> None:
        """Leave: the others take over at once instead of after the time-out."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        self.member = msgspec.structs.replace(self.member, left=True)
        try:
            async with asyncio.timeout(_STOP_S):
                await self._write()
        except (RoskvaError, TimeoutError) as error:
            log.warning("could not say goodbye to the other gateways: %s", error)

    def suspect(self, identity: str) -> None:
        """It does not answer: leave it out until its counter moves again."""
        if identity in self.view.live and identity != self.member.id:
            log.warning("member %s does not answer", identity)
            self.view.suspect(identity)
            self._tell()

    async def beat(self) -> None:
        """One heartbeat: write, read, observe.

        Without a read the view stays as it is: a failing table says nothing about others.
        """
        await self._write()
        read = await self.rows.read([MEMBERS_ROW])
        cells = read.get(MEMBERS_ROW, {})
        now_s = self.clock()
        # Whoever was silent for so long was left out by the others meanwhile, also if nothing looks different now.
        was_away = self._beaten_s is not None and now_s - self._beaten_s > self.view.timeout_s
        self._beaten_s = now_s
        if was_away:
            reached("members: back after an absence")
        if self.view.observe(cells.values(), now_s) or was_away:
            log.info("members: %s", ", ".join(sorted(self.view.live)) or "none")
            self._tell()
        await self._forget(cells)

    async def _write(self) -> None:
        self._counter += 1
        await self.rows.write([Mutation(MEMBERS_ROW, [member_cell(self.member, self._counter)])])

    async def _forget(self, cells: Row) -> None:
        now_s = self.clock()
        live = {member_cell(member, 0).name for member in self.view.live.values()}
        self._gone = {name: self._gone.get(name, now_s) for name in cells if name not in live}
        old = [cells[name] for name, since_s in self._gone.items() if now_s - since_s > FORGET_S]
        if old:
            await self.rows.write([Mutation(MEMBERS_ROW, [Cell(cell.name, cell.timestamp + 1, None) for cell in old])])

    async def _beat_on(self) -> None:
        while True:
            await asyncio.sleep(self.heartbeat_s)
            try:
                await self.beat()
                self.failing_since_s = None
            except RoskvaError as error:
                if self.failing_since_s is None:
                    self.failing_since_s = self.clock()
                    log.warning("the heartbeat failed: %s", error)
            except Exception:
                log.exception("the heartbeat failed")

    def _tell(self) -> None:
        for observer in self.observers:
            try:
                observer()
            except Exception:
                log.exception("an observer of the members failed")
