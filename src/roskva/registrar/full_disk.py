"""Near a full disk: what of a client's message is still done, and what is answered "later".

A registration costs cells in two tables and a record in the feed; it waits until there is room. To end one makes room, later, and goes on.
Each refused one is answered by itself, and no pause is asked for: the client's acknowledgements must not wait for it. Pure.
"""

from __future__ import annotations

from typing import Any

import msgspec

from roskva.errors import DiskFull
from roskva.protocol.messages import ClientMessage, ErrorReport
from roskva.registrar.core import failed


def sift(message: ClientMessage, reason: str) -> tuple[ClientMessage | None, dict[str, Any]]:
    """The part that is done (None: no part), and the fields of the answer to the rest; none if nothing is refused."""
    answer: dict[str, Any] = {}
    error = DiskFull(reason)
    sync = message.sync
    if message.register:
        answer["status"] = [failed(asked.object, error) for asked in message.register]
    if sync is not None and sync.objects is not None:  # the summaries of buckets write nothing
        answer["error"] = ErrorReport(code=error.code, message=str(error), transient=True)
        sync = None
    if not answer:
        return message, answer
    left = msgspec.structs.replace(message, register=[], sync=sync)
    return (left if left.unregister or sync is not None else None), answer
