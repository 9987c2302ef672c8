"""Logical positions: where an update stands in a dataset's log, the same in every replica of it (Wormhole 3.3.2).

Pure. A position names an update by the sequence number of its commit and its place within that commit, counted before anything is filtered:
never by a place in a file, which each replica has for itself. A datamarker is a position: all up to it, itself included, was dealt with.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from roskva.errors import BadRequest

NUMBER_MAX: Final = 2**63 - 1
WHOLE: Final = 2**31 - 1  # an index above that of any update: the end of its commit
_FORM: Final = re.compile(r"(\d{1,10})/(\d{1,19})(?:\.(\d{1,10}))?")


class Position(NamedTuple):
    """Compared as written: by history, then sequence, then index. The limits are those of what comes over a wire."""

    # Grows when a replica becomes the one that is written to (Postgres: the timeline); 0 where there is one only.
    history: Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
    sequence: Annotated[int, Meta(ge=0, le=NUMBER_MAX)]  # of the commit: grows, and may have gaps
    # Of the update within its commit, from 1; 0: before the first of them; WHOLE: all of them.
    index: Annotated[int, Meta(ge=0, le=WHOLE)] = WHOLE  # type: ignore[assignment]  # a tuple's method of this name, which nobody needs here

    def __str__(self) -> str:
        return f"{self.history}/{self.sequence}" + ("" if self.index == WHOLE else f".{self.index}")


BEGINNING: Final = Position(0, 0, 0)  # before everything


def position_from_text(text: str) -> Position:
    """What `str` makes of a position."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise BadRequest(f"{text[:64]!r} is no position in a log: HISTORY/SEQUENCE or HISTORY/SEQUENCE.INDEX is expected, such as 1/4711.")
    history, sequence, index = found.groups()
    position = Position(int(history), int(sequence), WHOLE if index is None else int(index))
    if position.history > NUMBER_MAX or position.sequence > NUMBER_MAX or position.index > WHOLE:
        raise BadRequest(f"{text!r} is no position: a number in it is too large.")
    return position
