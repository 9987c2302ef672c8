"""What makes a file's name durable: a file that was synced may still be gone after a power loss if its directory was not.

Blocking. Must not import anything of Roskva.
"""

from __future__ import annotations

import os
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """What was created in the directory, renamed or linked into it survives a power loss when this returns."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
