"""Directories: what makes a file's name durable, since a file that was synced may still be gone after a power loss if its directory was
not; and what keeps others out.

Blocking. Must not import anything of Roskva.
"""

from __future__ import annotations

import os
from pathlib import Path


def private_directory(directory: Path) -> None:
    """Make it, and what is missing above it, for its owner alone: names of users and objects are in the files. One that is there stays as
    it is: whoever made it decided who may look.
    """
    if directory.is_dir():
        return
    if directory.parent != directory:
        private_directory(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)


def sync_directory(directory: Path) -> None:
    """What was created in the directory, renamed or linked into it survives a power loss when this returns."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
