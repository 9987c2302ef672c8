"""A coroutine that begins at once, and goes on within the very turn of the event loop that brings what it waits for.

A task begins in the next turn, and goes on one turn after its future is done. Each turn reads all that clients have sent meanwhile, which
takes milliseconds under load; a publish waited for four turns beside its commit, and that was most of its time. Its coroutine awaits
nothing but a lane's answers, locks and a turn of the loop, and is never cancelled: for others there are tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from roskva.table.lanes import Answer

log = logging.getLogger(__name__)


class Steps:
    __slots__ = ("_coroutine", "_loop")

    def __init__(self, coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        self._coroutine = coroutine
        self._loop = loop

    def begin(self) -> None:
        self._step()

    def _step(self, _: object = None) -> None:
        """Never raises: it is called by whoever brings the answer, who has others to tell."""
        try:
            awaited = self._coroutine.send(None)
        except StopIteration:
            return
        except Exception:
            log.exception("a request could not be answered")
            return
        if awaited is None:  # a turn for others
            self._loop.call_soon(self._step)
            return
        awaited._asyncio_future_blocking = False  # as a task says that it has taken note
        if isinstance(awaited, Answer):
            awaited.at_once = self._step
        else:
            awaited.add_done_callback(self._step)
