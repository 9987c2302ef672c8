"""The data directory of a publisher, and where its processes find each other.

datamarkers.sqlite   how far each flow has come, and who owns it
control.sock         commands to the publisher (publisher/control.py)
notifier.sock        what Roskva's own subscriber says of itself, as JSON, to whoever sends a line
key                  the secret of applications that have none in the settings; made at the first start, its owner's alone
history.json         the log's history that was published last
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import Final

from roskva.address import address_of, host_and_port
from roskva.capture.settings import CaptureSettings
from roskva.durable import private_directory, sync_directory
from roskva.errors import InvalidSetting

CONTROL: Final = "control.sock"
DATAMARKERS: Final = "datamarkers.sqlite"
NOTIFIER: Final = "notifier.sock"
KEY: Final = "key"
HISTORY: Final = "history.json"
SOCKET_PATH_BYTES_MAX: Final = 107  # of Linux, for a Unix socket


def datamarkers_of(settings: CaptureSettings, instead: str = "") -> str:
    """Where the datamarkers are: as the settings say, or `instead`. Publishers that do not see each other's would all own every flow."""
    if len(settings.publisher.peers) > 1 and not (instead or settings.publisher.datamarkers):
        raise InvalidSetting(
            "publisher.peers names several publishers, which must share the place of their datamarkers: set publisher.datamarkers."
        )
    return instead or settings.publisher.datamarkers or str(settings.publisher.data / DATAMARKERS)


def check_places(settings: CaptureSettings) -> None:
    """Raises InvalidSetting for a directory or an address that nobody could use."""
    given = settings.publisher
    if len(os.fsencode(str(given.data / NOTIFIER))) > SOCKET_PATH_BYTES_MAX:
        raise InvalidSetting(
            f"publisher.data is {str(given.data)!r}, which is too long: the path of a socket in it may have {SOCKET_PATH_BYTES_MAX} bytes."
        )
    if not given.listen.startswith("unix:") and host_and_port(given.listen)[1] == 0:
        raise InvalidSetting("publisher.listen has port 0: subscribers must know where the publisher is, so it needs a port of its own.")


def key_of(settings: CaptureSettings, application: str) -> bytes:
    """The application's own, or the publisher's, or the one in the data directory, which is made if it is not there."""
    given = settings.applications[application].key or settings.publisher.key
    if given:
        return given.encode()
    path = settings.publisher.data / KEY
    private_directory(path.parent)
    with suppress(FileExistsError):
        # Written aside and linked: two processes that start together find one key, and never half of it.
        fresh = path.with_name(f"{KEY}.{os.getpid()}")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(fresh, path)
            sync_directory(path.parent)
        finally:
            fresh.unlink()
    return path.read_text().strip().encode()


def reachable(listen: str) -> str:
    """Where a process of this machine reaches who listens there."""
    if listen.startswith("unix:"):
        return listen
    host, port = host_and_port(listen)
    return address_of({"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host), port)
