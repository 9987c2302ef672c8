"""Where datamarkers are kept, as the settings say it: a file, or a PostgreSQL server as libpq reads it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from roskva.capture.datamarkers.interface import Datamarkers
from roskva.capture.datamarkers.sqlite import SqliteDatamarkers
from roskva.errors import InvalidSetting

_SERVER: Final = re.compile(r"postgres(ql)?://|\s*[a-z_]+\s*=")


def is_server(place: str) -> bool:
    """Whether it names a PostgreSQL server: host=db1,db2 dbname=roskva, or postgresql://db1,db2/roskva."""
    return _SERVER.match(place) is not None


def check_place(place: str) -> None:
    """Raises InvalidSetting for what is neither. Opens nothing."""
    if is_server(place):
        from roskva.capture.stores.postgres.connecting import PostgresSettings

        PostgresSettings(place)
    elif "://" in place:
        kind = place.partition("://")[0][:32]
        raise InvalidSetting(f"Datamarkers are kept in a file, or in a server: host=... dbname=... or postgresql://..., not {kind}://.")


def open_datamarkers(place: str, dataset: str) -> Datamarkers:
    """Raises Unavailable if it cannot be reached now, and CaptureRefused or BadRequest if it is not ours. Blocks."""
    if not is_server(place):
        return SqliteDatamarkers(Path(place).expanduser(), dataset)
    from roskva.capture.datamarkers.postgres import PostgresDatamarkers

    return PostgresDatamarkers(place, dataset)
