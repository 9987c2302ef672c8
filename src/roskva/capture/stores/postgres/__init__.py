"""PostgreSQL 15 and later: its write-ahead log, decoded by the server's own `pgoutput` and read over the replication protocol."""

from roskva.capture.stores.postgres.connecting import PostgresSettings
from roskva.capture.stores.postgres.store import PostgresStore

__all__ = ["PostgresSettings", "PostgresStore"]
