"""What capture must be told of a MySQL server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from roskva.capture.stores.binlog.settings import ServerSettings
from roskva.errors import InvalidSetting

SOURCE: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlSettings(ServerSettings):
    engine: ClassVar[str] = "MySQL"

    source: str = ""  # server_uuid of whoever is written to; empty: the only one that has ever committed anything

    def __post_init__(self) -> None:
        ServerSettings.__post_init__(self)
        if self.source and not SOURCE.fullmatch(self.source):
            raise InvalidSetting(
                f"The source {self.source[:64]!r} is no server_uuid: SELECT @@server_uuid, on the server that is written to, says it."
            )
