"""What the datastores share whose logs are files of this machine: files.py and rocksdb.py.

Blocking. Must not import anything of the publisher.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from roskva.errors import CaptureRefused, DatastoreUnavailable

# The time of a file's last write lags behind the clock: by a tick of the kernel on a local disk, by two seconds on the worst there are.
CLOCK_SLACK_S: Final = 2.0


@contextlib.contextmanager
def answering(directory: Path) -> Iterator[None]:
    """What the operating system says about the files of a log, as errors of capture."""
    try:
        yield
    except PermissionError as error:
        raise CaptureRefused(f"The log in {directory} cannot be read: {error}.") from error
    except OSError as error:
        raise DatastoreUnavailable(f"The log in {directory} does not answer: {error}.") from error


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def commit_us(status: os.stat_result) -> int:
    """Of what says no time: the last write of its file, which is about when it was committed, or later; not later than now."""
    return min(status.st_mtime_ns, time.time_ns()) // 1000
