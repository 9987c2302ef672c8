"""The process that started this one: notice that it is gone, however it went, and not stay behind.

An orphan is given another parent at once; that its number is another is all there is to see. Must not import anything of Roskva.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final

_POLL_S: Final = 0.5


def when_parent_is_gone(act: Callable[[], None], parent: int | None = None) -> None:
    """Call `act`, once and in a thread of its own, when the parent is another than `parent` (None: than it is now)."""
    expected = os.getppid() if parent is None else parent

    def watch() -> None:
        while os.getppid() == expected:
            time.sleep(_POLL_S)
        act()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
