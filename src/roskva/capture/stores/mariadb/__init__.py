"""MariaDB as a datastore of capture: its row-based binary log, read as a replica reads it (Wormhole 2.1 and 3.3.2).

What it shares with MySQL is in `stores/binlog`. Its own:

| module | what it is |
|---|---|
| `settings` | what must be known of a server |
| `decoding` | pure: groups that begin with a GTID of a domain, and compressed events |
| `forks` | pure: numbers that were given twice, and which history a position is of |
| `witness` | who wrote which commit, as far as it was seen, and kept for all publishers |
| `locating` | the mapper: from a position to a place in this server's log |
| `store` | the datastore |
| `checking` | `capture check` |

A position is (history, sequence number of the GTID, row within its commit); the history is 0 until a primary is lost with commits that no
replica had. What a user of it must know:

- The identity is `mariadb/DATASET/DOMAIN`. Servers have nothing in common with their replicas that a program could read, so a person names
  the data. One GTID domain is read. Positions have no server id: if a primary is lost with commits that no replica had, the new one
  gives their numbers again, in another history (`forks`). Whoever comes there is told of a loss. Semi-synchronous replication prevents
  the case.
- The time of a commit is that of the server's clock, in whole seconds, at which its last statement began.
- What the server has logged with a ROLLBACK at its end, since a table in it cannot roll back, is told as if it were committed.
- TRUNCATE is a change, and so is whatever else takes rows away without a word in the log: DROP TABLE, CREATE OR REPLACE TABLE, partitions
  that are dropped, emptied or exchanged. DROP DATABASE, RENAME and other ALTERs are none. Rows that cascade in foreign keys are not in the
  log at all (`cascades` finds such keys).
- A producer attaches keys to its transaction by inserting rows (name, value) into a table that is called `roskva_attach`; they go with all
  that follows in the transaction, and are no changes themselves. With ENGINE=BLACKHOLE the table stays empty:
  `CREATE TABLE roskva_attach (name VARCHAR(64) NOT NULL, value TEXT) ENGINE=BLACKHOLE`.
"""

from roskva.capture.stores.mariadb.settings import MariadbSettings
from roskva.capture.stores.mariadb.store import MariadbStore

__all__ = ["MariadbSettings", "MariadbStore"]
