"""The outbox as a Django app: `"roskva.outbox.django"` in INSTALLED_APPS, `manage.py migrate`, and a relay by `manage.py roskva_relay`.

    with transaction.atomic():
        document.save()
        outbox.publish("shop", f"doc:{document.pk}")

The tables are those of rows.py, so that any relay reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from roskva.errors import BadRequest, InvalidSetting
from roskva.outbox.rows import Database, record_of

try:
    from django.db import connections, transaction
except ImportError as error:
    raise InvalidSetting("roskva.outbox.django needs Django, which is not installed: pip install django.") from error

DEFAULT = "default"


def publish(application: str, name: str | bytes, version: int | str | None = None, source: str | None = None, using: str = DEFAULT) -> None:
    """In the transaction that `transaction.atomic` has opened: told if that commits, only then. `using` is the change's database."""
    from roskva.outbox.django.models import OutboxRow

    record = record_of(application, name, version, source)
    if not connections[using].in_atomic_block:
        raise BadRequest(
            f"publish was called outside of transaction.atomic (database {using!r}): it belongs into the change's transaction."
        )
    OutboxRow.objects.using(using).create(
        application=record.application,
        object=record.object,
        version=record.version,
        source=record.source,
        created_ms=record.created_ms,
    )


def database(using: str = DEFAULT) -> Database:
    """For a Relay, in the thread that runs it."""
    connection = connections[using]

    @contextmanager
    def in_transaction() -> Iterator[Any]:
        try:
            with transaction.atomic(using=using), connection.cursor() as cursor:
                yield cursor
        except Exception:
            connection.close_if_unusable_or_obsolete()
            raise

    return Database(in_transaction, "%s", connection.close)
