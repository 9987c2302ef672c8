"""What capture must be told of a server, whichever of the two it is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar, Final

from roskva.errors import InvalidSetting

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """One server: the primary, or a replica that logs what it replicates."""

    engine: ClassVar[str]  # how a person calls what runs there

    dataset: str  # a name for the data, the same for every replica
    host: str = "127.0.0.1"
    port: int = 3306
    unix_socket: str = ""  # used instead of host and port, if it is given
    user: str = "roskva"
    password: str = field(default="", repr=False)
    tls_ca: str = ""  # a file of certificates: the connection is encrypted, and the server must show one of theirs. Empty: plain
    connect_timeout_s: float = 10.0
    heartbeat_s: float = 10.0  # the server says so often that it is there; after three times without a word the connection counts as dead
    event_bytes_max: int = 256 * 1024 * 1024  # of one event, which has whole rows: a larger one is refused. Memory for one is needed
    statement_s_max: float = 60.0  # the longest that one statement takes: a time to begin at is taken so much earlier
    prepared_xa_counts: bool = False  # publish rows of an XA transaction when it is prepared; else the log is refused that has any

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.dataset):
            raise InvalidSetting(
                f"The dataset {self.dataset!r} cannot be named so: 1 to 64 letters, digits, dots, hyphens and underlines are expected."
            )
        if self.connect_timeout_s <= 0 or self.heartbeat_s < 0.05 or self.statement_s_max < 0 or self.event_bytes_max < 1024 * 1024:
            raise InvalidSetting(f"A limit of the {self.engine} datastore is too small: the heartbeat is at least 0.05 s, an event 1 MiB.")

    @property
    def where(self) -> str:
        return self.unix_socket or f"{self.host}:{self.port}"
