"""What a publisher needs of the place that keeps datamarkers. The contract that every engine keeps.

Calls block, and are made from a thread; a publisher gathers what was acknowledged while the last call was under way and stores it in one.
Every flow has an epoch. Who owns a flow wrote its own name there under a higher epoch than that of the owner before, in one step that only
one can win; whatever an earlier owner still writes is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from roskva.capture.ownership import FlowName, Record
from roskva.capture.positions import Position
from roskva.errors import BadRequest

NOTE_BYTES_MAX: Final = 1_000_000
# Notes of the engines' own:
DATASET: Final = "#dataset"  # whose datamarkers these are
FORGOTTEN: Final = "#forgotten"  # the highest epoch of flows that were forgotten: if one comes back, it goes on from there


class Mark(NamedTuple):
    """A datamarker on its way into the store."""

    flow: FlowName
    position: Position
    epoch: int  # of whoever writes it


class Claim(NamedTuple):
    flow: FlowName
    seen: int  # the flow's epoch, as it was read; 0: it is not there


class Beat(NamedTuple):
    """A member, as it was seen: it lives while its counter moves on the observer's own clock."""

    counter: int
    about: bytes


class Datamarkers(Protocol):
    """The place that keeps the datamarkers of one dataset; opened for another one, it raises BadRequest.

    Returning means durable. Raising Unavailable: it may have happened, or not; the next call tries to reach the place again. Safe from
    several threads, and several of these may be open at a time.
    """

    def records(self) -> dict[FlowName, Record]: ...

    def store(self, marks: Sequence[Mark]) -> list[FlowName]:
        """Move datamarkers forward: the larger position wins. The answer: flows that have another epoch than the mark, where nothing was
        written, because somebody else owns them now.
        """
        ...

    def take(self, claims: Sequence[Claim], publisher: str) -> dict[FlowName, int]:
        """Become the owner of each flow whose epoch is still the one that was seen, under a higher one, which no owner of it ever had.
        The answer: those that are ours now, each with its epoch; of the others somebody was quicker.
        """
        ...

    def release(self, flows: Sequence[FlowName], publisher: str) -> None:
        """Let another one go on. Only what this publisher owns is released."""
        ...

    def rewind(self, flow: FlowName, publisher: str, position: Position) -> int:
        """Set the datamarker where it is told, back or forward, under the next epoch, which is the answer; 0: it is not the owner."""
        ...

    def forget(self, claims: Sequence[Claim]) -> list[FlowName]:
        """Remove flows that nobody wants any more, datamarkers and all: each whose epoch is still the one that was seen. The answer: those
        that have another epoch now, since somebody took them meanwhile. They stay."""
        ...

    def beat(self, member: str, about: bytes) -> None:
        """Move the member's counter."""
        ...

    def members(self) -> dict[str, Beat]: ...

    def leave(self, member: str) -> None:
        """It ends on purpose: nobody needs to wait for its counter."""
        ...

    def note(self, name: str, value: bytes) -> None:
        """Keep a small thing that all publishers shall know, such as an application's order of publishers. Empty: forget it. Raises
        BadRequest for more than NOTE_BYTES_MAX, and for names that begin with `#`."""
        ...

    def swap(self, name: str, before: bytes, after: bytes) -> bool:
        """Change a note in one step, if it is still what it was before; empty: it is not there. False: it is something else."""
        ...

    def notes(self) -> Mapping[str, bytes]: ...

    def close(self) -> None: ...


def check_note(name: str, value: bytes) -> None:
    if len(value) > NOTE_BYTES_MAX or name.startswith("#"):
        raise BadRequest(f"The note {name[:80]!r} of {len(value):,} bytes cannot be kept beside the datamarkers.")


def check_dataset(place: str, known: bytes, dataset: str) -> None:
    if known != dataset.encode():
        raise BadRequest(
            f"The datamarkers in {place} are of the dataset {known.decode(errors='replace')!r}: {dataset!r} needs a place of its own."
        )
