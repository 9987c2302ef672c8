"""Outbox: publishes inside the application's own transaction, for those who cannot open their database's log.

An application writes what it publishes into a table of its own database, in the transaction that makes the change: both are committed, or
neither is. A relay (relay.py) brings the rows to the service and deletes them when that has them. With SQLAlchemy:

    from roskva.outbox import sqlalchemy as outbox

    with Session(engine) as session, session.begin():
        document.title = "New"
        outbox.publish(session, "shop", f"doc:{document.id}")

With Django (`"roskva.outbox.django"` in INSTALLED_APPS, then `manage.py migrate`):

    from roskva.outbox import django as outbox

    with transaction.atomic():
        document.save()
        outbox.publish("shop", f"doc:{document.pk}")

rows.py has the tables for Postgres, MariaDB or MySQL, and SQLite, says what is promised, and why versions grow although transactions
commit in another order than they wrote. Nothing here is imported unless it is used: SQLAlchemy and Django are the application's own.
"""

from roskva.outbox.relay import Relay
from roskva.outbox.rows import DDL, Database, Record, record_of

__all__ = ["DDL", "Database", "Record", "Relay", "record_of"]
