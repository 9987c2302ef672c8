"""For users' own tests: a whole service in the test's process, with a clock moved by hand and losses on demand (docs/testing.md).

The decisions are those of the real Registrar and Matcher cores; the clients are real ones. There is no socket, no thread and no waiting. It
needs none of the packages of a server. Must not import gateway, pipeline or feed.
"""

from __future__ import annotations

from roskva.testing.loop import NotAwaited, Stuck
from roskva.testing.service import Service

__all__ = ["NotAwaited", "Service", "Stuck"]
