"""Where in the log a flow begins that has no datamarker yet, and where an operator rewinds one to (Wormhole 3.3.1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import cast

from roskva.capture.interface import Datastore
from roskva.capture.ownership import FlowName
from roskva.capture.positions import Position
from roskva.capture.publisher.settings import ApplicationSettings, Start
from roskva.errors import BadRequest, InvalidSetting, LogCut, RoskvaError


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
