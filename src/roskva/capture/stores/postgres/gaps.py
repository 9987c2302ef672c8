"""The word of our own in the log: changes of a table are missing here (publication.py writes it, decoding.py finds it).

Any user of the database may write messages of any prefix, and this one makes every subscriber fetch everything. So it counts only with a
secret in it, which is kept beside the datamarkers and which all publishers of the data share: they know what one of them wrote before a
restart, or at the primary. Users of the database cannot see it: the log is read by roles with REPLICATION alone, and the statements of
others by those who may see all of them. What has another secret, or none, says nothing, and is no change either.

Must not import anything that reads or writes.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from roskva.capture.stores.postgres.decoding import keys_from_message
from roskva.errors import DatastoreUnavailable, Unavailable

TABLES_TOLD_MAX: Final = 5


class Gaps:
    """Of one store. Safe from several threads."""

    def __init__(self, publication: str) -> None:
        self._publication = publication
        self._secret = ""
        own = secrets.token_hex(16)
        self._ask: Callable[[], str] = lambda: own

    def sign_with(self, secret: Callable[[], str]) -> None:
        self._ask = secret

    def message(self, tables: Sequence[str]) -> str:
        """What is written to the log."""
        listed = ", ".join(tables[:TABLES_TOLD_MAX])
        return json.dumps({"publication": self._publication, "tables": listed, "secret": self._signature()})

    def is_one(self, content: bytes) -> bool:
        """Whether one of our publishers wrote this, of our publication."""
        found = keys_from_message(content) or {}
        secret = found.get("secret")
        if found.get("publication") != self._publication or not isinstance(secret, str):
            return False
        return hmac.compare_digest(secret.encode(errors="backslashreplace"), self._signature().encode())

    def _signature(self) -> str:
        if not self._secret:
            try:
                self._secret = self._ask()
            except Unavailable as error:
                raise DatastoreUnavailable(f"The secret by which we know our own words in the log cannot be read now: {error}") from error
        return self._secret
