"""What capture must be told of a MariaDB server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from roskva.capture.stores.binlog.settings import ServerSettings
from roskva.errors import InvalidSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class MariadbSettings(ServerSettings):
    """Servers share nothing but a GTID domain, which is 0 nearly everywhere: hence a dataset is named by a person."""

    engine: ClassVar[str] = "MariaDB"

    domain: int = 0  # the GTID domain of the data: gtid_domain_id of whoever is written to

    def __post_init__(self) -> None:
        ServerSettings.__post_init__(self)  # `super` does not work in a dataclass with slots
        if not 0 <= self.domain < 2**32:
            raise InvalidSetting(f"The GTID domain {self.domain} does not exist: it is a number from 0 to 4294967295.")
