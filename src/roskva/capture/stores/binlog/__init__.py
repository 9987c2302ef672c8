"""What the row-based binary logs of MariaDB and MySQL have in common, and the stores that read them: `stores/mariadb`, `stores/mysql`.

| module | what it is |
|---|---|
| `settings` | what must be known of a server |
| `values`, `documents`, `tables`, `images`, `statements`, `decoding` | pure: from the bytes of events to changes |
| `protocol` | statements, and the stream of events, over pymysql's connection |
| `files` | the files of a server's log, and in which of them a commit is |
| `describing` | tables as they are now, for logs that do not say how they were |
| `reading`, `store` | the reader, the datastore |
| `checking`, `cascades` | `capture check` |

What a commit is called, in which order commits are, and where in the log one is found is different in both, and is none of this room's
business: who reads a log derives from `Decoder`, `Files` and `BinlogStore`.
"""
