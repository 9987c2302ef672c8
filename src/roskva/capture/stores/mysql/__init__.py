"""MySQL as a datastore of capture: its row-based binary log, read as a replica reads it (Wormhole 2.1 and 3.3.2).

What it shares with MariaDB is in `stores/binlog`. Its own:

| module | what it is |
|---|---|
| `settings` | what must be known of a server |
| `gtids`, `decoding` | pure: sets of GTIDs; groups that begin with one, and what is refused |
| `locating` | the mapper: from a position to a place in this server's log |
| `marks` | places within files, to which readers have come before |
| `store` | the datastore |
| `checking` | `capture check` |

A position is (0, the number of the GTID, row within its commit). What a user of it must know:

- The identity is `mysql/DATASET/SOURCE`. The source is the UUID of the server that is written to: the setting `source`, or the only one of
  which the server has any commits. One source is read (docs/decisions/0036). Commits of another one in the log, or without a GTID, or
  with a tag, or out of order, are refused where they stand: nothing is skipped.
- Beginning at a time is by the server's clock, in whole seconds, at which the last statement of a commit began.
- What takes rows away without a word in the log, how producers attach keys, and what is not in the log at all, is as in `stores/mariadb`.
- JSON is text, as the database itself would write it.
"""

from roskva.capture.stores.mysql.settings import MysqlSettings
from roskva.capture.stores.mysql.store import MysqlStore

__all__ = ["MysqlSettings", "MysqlStore"]
