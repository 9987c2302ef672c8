"""Where in the log a flow begins that has no datamarker yet, and where an operator rewinds one to (Wormhole 3.3.1).

To look for a time in the log may take long. It is done beside the rounds of ownership (owning.py), so that none of them waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import NamedTuple, cast

from roskva.capture.interface import Datastore
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position
from roskva.capture.publisher.settings import ApplicationSettings, Start
from roskva.errors import BadRequest, InvalidSetting, LogCut, RoskvaError

log = logging.getLogger(__name__)


def position_in(datastore: Datastore, start: Start) -> Position:
    """Blocks, for a time as long as it takes to search the log. Raises BadRequest for a position that the log has not come to."""
    if isinstance(start, Position):
        end = datastore.retained().end
        # A flow that stood there would be sent nothing until the log has come there, if it ever does: of a history that does not exist,
        # or with a digit too many, all that is written would be left out, and the flow would count as one that lacks nothing.
        if start > end:
            raise BadRequest(f"The log ends at {end}, and {start} is beyond it: what is written until it comes there would be left out.")
        return start
    if start == "end":
        return datastore.retained().end
    if start == "oldest":
        return datastore.retained().oldest
    try:
        return datastore.at_time(float(start))
    except LogCut as error:
        return cast(Position, error.oldest)  # it wished for more than there is


async def beginnings(
    flows: Iterable[FlowName], applications: Mapping[str, ApplicationSettings], find: Callable[[Start], Awaitable[Position]]
) -> tuple[dict[FlowName, Position], dict[str, RoskvaError]]:
    """Where they begin, each place looked for once; and of which applications this cannot be said, and why. If that may pass, no flow can
    begin yet: one that begins at the end would let go of what others begin with later.
    """
    wishing: dict[Start, list[FlowName]] = {}
    for flow in flows:
        if flow.application in applications:
            wishing.setdefault(applications[flow.application].start, []).append(flow)
    begins: dict[FlowName, Position] = {}
    problems: dict[str, RoskvaError] = {}
    for start, its_flows in wishing.items():
        try:
            position = await find(start)
        except RoskvaError as error:
            problems |= {flow.application: _problem(flow.application, error) for flow in its_flows}
            if error.transient:
                return {}, problems
        else:
            begins |= dict.fromkeys(its_flows, position)
    return begins, problems


def _problem(application: str, error: RoskvaError) -> RoskvaError:
    """What `position_in` has raised for its flows, for whoever can mend it."""
    if type(error) is BadRequest:
        return InvalidSetting(f"The flows of {application!r} do not begin, because of its `start`. {error.what}")
    return error


class _Search(NamedTuple):
    applications: Mapping[str, ApplicationSettings]  # as they were when it began
    task: asyncio.Task[tuple[dict[FlowName, Position], dict[str, RoskvaError]]]


class Beginning:
    """One search at a time, for all flows that have no datamarker. Belongs to the event loop."""

    def __init__(self, find: Callable[[Start], Awaitable[Position]], found: Callable[[], None]) -> None:
        """`found` is called when a search has ended: `of` has its answer then."""
        self.problems: dict[str, RoskvaError] = {}  # applications whose flows cannot begin, and why
        self._find = find
        self._found = found
        self._search: _Search | None = None

    def of(self, flows: Collection[FlowName], applications: Mapping[str, ApplicationSettings]) -> dict[FlowName, Position]:
        """Where these begin, of which this is known by now. It is known once: whoever cannot use it asks again, and it is looked for anew,
        since what was the log's oldest a while ago may be gone."""
        search = self._search
        if search is None:
            if flows:
                task = asyncio.get_running_loop().create_task(beginnings(flows, applications, self._find), name="where flows begin")
                task.add_done_callback(lambda _: self._found())
                self._search = _Search(applications, task)
            else:
                self.problems = {}
            return {}
        if not search.task.done():
            return {}
        self._search = None
        begins, problems = search.task.result()
        for application, problem in problems.items():
            if str(problem) != str(self.problems.get(application)):
                log.warning("%s", problem)
        self.problems = problems
        return {flow: begins[flow] for flow in flows if flow in begins and _starts_alike(flow, search.applications, applications)}

    async def stop(self) -> None:
        """What was begun in a thread goes on there, and nobody hears of it any more."""
        if self._search is not None:
            self._search.task.cancel()
            await asyncio.gather(self._search.task, return_exceptions=True)


def _starts_alike(flow: FlowName, before: Mapping[str, ApplicationSettings], now: Mapping[str, ApplicationSettings]) -> bool:
    """Other settings may have come since it was looked for."""
    return flow.application in now and now[flow.application].start == before[flow.application].start
