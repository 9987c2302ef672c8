"""What the flows have brought and Spark has not finished with: where a batch ends, and what is in it.

No I/O, no clock, no threads. The updates of each shard stand here in order and once, however often the flow brought them, from where the
batch before ended. A batch is cut out of them by its end alone; what it held stays until Spark begins the one after it. So nothing lies
between the question where a batch ends and the reading of it, and asked again, also after a crash, the answer is the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from roskva.capture.positions import BEGINNING, Position
from roskva.capture.spark.columns import Row, loss
from roskva.capture.spark.offsets import Offset, Reached
from roskva.errors import BadRequest, InvalidSetting, LogCut, RoskvaError

CUT: Final = "the database has dropped it from its log"
ELSEWHERE: Final = "another subscriber of the application has acknowledged it"
CHANGED: Final = "it is not what it was when the batch was first read"


@dataclass(slots=True)
class _Shard:
    reached: Position  # all up to here came
    quiet: bool  # no update stands there
    rows: list[Row] = field(default_factory=list)  # after where the batch before ended


class Buffers:
    """`at` comes first: before a flow is opened, it is known where its shard is."""

    def __init__(self, fail_on_data_loss: bool) -> None:
        self.size = 0  # bytes, about
        self.count = 0
        self._fails = fail_on_data_loss
        self._dataset = ""
        self._shards: dict[int, _Shard] = {}

    @property
    def shards(self) -> list[int]:
        return sorted(self._shards)

    # What flows bring.

    def of(self, dataset: str) -> None:
        """Flows are of this dataset."""
        if self._dataset and dataset != self._dataset:
            raise InvalidSetting(
                f"The publishers or the checkpoint are of another dataset: {dataset[:64]!r} instead of {self._dataset[:64]!r}. "
                "A query reads one; another one needs a checkpoint of its own."
            )
        self._dataset = dataset

    def opened(self, shard: int, datamarker: Position) -> None:
        """Its flow comes from here on. What lies between is quiet, or somebody else has taken it: see Reached.acknowledgement."""
        state = self._shards.get(shard)
        if state is None:
            self._shards[shard] = _Shard(datamarker, True)
        elif datamarker > state.reached:
            if not state.quiet:
                self._add(state, [loss(state.reached, datamarker, ELSEWHERE)])
            state.reached, state.quiet = datamarker, True

    def put(self, shard: int, rows: Sequence[Row]) -> None:
        """Those that came before are dropped."""
        state = self._shards[shard]
        new = [row for row in rows if row.position > state.reached]
        if new:
            self._add(state, new)
            state.reached, state.quiet = new[-1].position, False

    def sent(self, shard: int, upto: Position) -> None:
        """The publisher says that all up to here was sent."""
        state = self._shards[shard]
        if upto > state.reached:
            state.reached, state.quiet = upto, True

    def lost(self, shard: int, after: Position, upto: Position) -> None:
        state = self._shards[shard]
        if upto > state.reached:
            self._add(state, [loss(max(after, state.reached), upto, CUT)])
            state.reached, state.quiet = upto, True

    def behind(self, shard: int, end: Offset) -> bool:
        """Whether a batch with this end still needs something of this shard."""
        state, wanted = self._shards.get(shard), end.shards.get(shard)
        return wanted is not None and (state is None or state.reached < wanted.position)

    # What Spark asks.

    def at(self, start: Offset) -> None:
        """Spark has finished with everything up to here, and never asks for it again."""
        if start.shards:
            self.of(start.dataset)
        for shard, (position, _, quiet) in start.shards.items():
            state = self._shards.setdefault(shard, _Shard(position, quiet))
            done = 0
            for row in state.rows:
                if row.position > position:
                    break
                done += 1
                self.size -= row.size
            del state.rows[:done]
            self.count -= done

    def end_after(self, start: Offset, updates_max: int, bytes_max: int, committed_us_max: int | None = None) -> Offset:
        """Where a batch that begins here ends: the oldest updates of all shards first, so that none waits for ever. At least one, if there
        is one; and with the last one of a shard, as far as that is known to be quiet.
        """
        self.at(start)
        taken = dict.fromkeys(self._shards, 0)
        waiting = [(state.rows[0].committed_us or 0, shard) for shard, state in self._shards.items() if state.rows]
        heapq.heapify(waiting)
        updates = size = 0
        while waiting and updates < updates_max:
            committed_us, shard = waiting[0]
            rows = self._shards[shard].rows
            row = rows[taken[shard]]
            if (row.lost and self._fails) or (committed_us_max is not None and committed_us > committed_us_max):
                heapq.heappop(waiting)
                continue
            if updates and size + row.size > bytes_max:
                break
            taken[shard] += 1
            updates, size = updates + 1, size + row.size
            if taken[shard] < len(rows):
                heapq.heapreplace(waiting, (rows[taken[shard]].committed_us or 0, shard))
            else:
                heapq.heappop(waiting)
        return Offset(self._dataset, dict(start.shards) | self._ends(start, taken))

    def _ends(self, start: Offset, taken: dict[int, int]) -> dict[int, Reached]:
        ends = {}
        for shard, count in taken.items():
            state = self._shards[shard]
            updates = start.updates(shard) + count
            if count == len(state.rows):
                ends[shard] = Reached(state.reached, updates, state.quiet)
            elif count:
                last = state.rows[count - 1]
                ends[shard] = Reached(last.position, updates, last.lost)
        return ends

    def between(self, start: Offset, end: Offset) -> dict[int, list[Row]] | None:
        """What is after the one, up to and with the other. None: it has not all come yet."""
        self.at(start)
        found: dict[int, list[Row]] = {}
        for shard, upto in end.shards.items():
            expected = upto.updates - start.updates(shard)
            if expected <= 0:
                continue
            after = start.shards[shard].position if shard in start.shards else BEGINNING
            state = self._shards.get(shard)
            rows = [] if state is None else [row for row in state.rows if after < row.position <= upto.position]
            if len(rows) < expected:
                if state is None or state.reached < upto.position:
                    return None
                rows.append(loss(after, upto.position, CHANGED))
            found[shard] = rows
        self._raise_for(found)
        return found

    def raise_if_lost(self) -> None:
        """If a shard cannot go on, and it was asked for that the query then ends. What came before is in batches already."""
        self._raise_for({shard: state.rows[:1] for shard, state in self._shards.items()})

    def _raise_for(self, found: dict[int, list[Row]]) -> None:
        if self._fails:
            for shard, rows in found.items():
                for row in rows:
                    if row.lost:
                        raise _error(self._dataset, shard, row)

    def _add(self, state: _Shard, rows: Sequence[Row]) -> None:
        state.rows += rows
        self.count += len(rows)
        self.size += sum(row.size for row in rows)


def _error(dataset: str, shard: int, row: Row) -> RoskvaError:
    told = dict(row.columns)
    place = f"shard {shard} of {dataset!r}"
    what = f"Updates of {place} after {told['after']}, up to {told['upto']}, do not come: {told['why']}."
    error: RoskvaError
    if told["why"] == CUT:
        error = LogCut(f"{told['after']} in {place}", told["upto"])
    elif told["why"] == ELSEWHERE:
        error = InvalidSetting(
            f"{what} One query has an application of its own, without max_age_s, and one checkpoint that is never taken from a backup."
        )
    else:
        error = BadRequest(f"{what} Was the application's filter changed, its max_age_s, or the rule of the shards?")
    error.add_note("With failOnDataLoss=false the query goes on, and a row of the operation data-loss tells of it.")
    return error
