"""The outbox as a Django app: its migration, publishing within transaction.atomic, and a relay by manage.py; on SQLite and Postgres."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from roskva.errors import BadRequest, InvalidName
from roskva.outbox.relay import Relay
from tests.outbox.conftest import APPLICATION, Recorder, Told

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def django(servers: dict[str, Callable[[], str]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Set up once, as one process of Django is; the app's tables are made by its migration."""
    import django as package
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connections

    url = sa.make_url(servers["postgres"]())
    settings.configure(
        INSTALLED_APPS=["roskva.outbox.django"],
        DATABASES={
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path_factory.mktemp("django") / "db.sqlite3")},
            "postgres": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": "django",
                "HOST": url.host,
                "PORT": url.port,
                "USER": url.username,
            },
        },
        USE_TZ=True,
    )
    with sa.create_engine(url, isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(sa.text("CREATE DATABASE django"))
        connection.engine.dispose()
    package.setup()
    for using in ("default", "postgres"):
        call_command("migrate", "roskva_outbox", database=using, verbosity=0)
    yield package
    for connection in connections.all():
        connection.close()


@pytest.fixture(params=["default", "postgres"])
def using(request: pytest.FixtureRequest, django: Any) -> Iterator[str]:
    from roskva.outbox.django.models import OutboxRelay, OutboxRow

    yield request.param
    for model in (OutboxRow, OutboxRelay):
        model.objects.using(request.param).all().delete()


def test_the_migration_makes_what_the_models_are(django: Any) -> None:
    from django.core.management import call_command

    differ = None
    try:
        call_command("makemigrations", "roskva_outbox", check_changes=True, dry_run=True, verbosity=0)
    except SystemExit as ended:
        differ = ended.code
    assert differ is None


def test_what_is_published_is_told_if_the_transaction_commits(using: str) -> None:
    from django.db import transaction

    from roskva.outbox import django as outbox

    with transaction.atomic(using=using):
        outbox.publish(APPLICATION, "doc:1", using=using)
        outbox.publish(APPLICATION, b"\xff", 7, "phone", using=using)
    with transaction.atomic(using=using):
        outbox.publish(APPLICATION, "doc:2", using=using)
        transaction.set_rollback(True, using=using)
    told = Told()
    relay = Relay(outbox.database(using), {APPLICATION: told})
    assert relay.once() == 2
    assert relay.once() == 0
    (first, version, source), second = told.told
    assert (first, source) == ("doc:1", None)
    assert version > 10**15
    assert second == ("base64:_w", 7, "phone")


def test_outside_of_a_transaction_it_is_refused(using: str) -> None:
    from roskva.outbox import django as outbox
    from roskva.outbox.django.models import OutboxRow

    with pytest.raises(BadRequest, match="outside of transaction"):
        outbox.publish(APPLICATION, "doc:1", using=using)
    assert OutboxRow.objects.using(using).count() == 0


def test_mistakes_are_raised_in_the_transaction(using: str) -> None:
    from django.db import transaction

    from roskva.outbox import django as outbox

    with transaction.atomic(using=using), pytest.raises(InvalidName):
        outbox.publish(APPLICATION, "", using=using)


def test_a_relay_can_be_run_by_manage(using: str, service: Recorder) -> None:
    from django.core.management import call_command
    from django.db import transaction

    from roskva.outbox import django as outbox
    from roskva.outbox.django.models import OutboxRow

    with transaction.atomic(using=using):
        outbox.publish(APPLICATION, "doc:1", using=using)
    assert [str(row) for row in OutboxRow.objects.using(using).all()] == ["shop/doc:1"]
    call_command("roskva_relay", application=[APPLICATION], url=service.url, database=using, once=True)
    assert [name for name, *_ in service.told] == ["doc:1"]
    assert OutboxRow.objects.using(using).count() == 0


def test_a_relay_survives_that_its_connection_breaks(django: Any) -> None:
    from django.db import connections, transaction

    from roskva.outbox import django as outbox

    told = Told()
    relay = Relay(outbox.database("postgres"), {APPLICATION: told})
    relay.once()
    with transaction.atomic(using="postgres"):
        outbox.publish(APPLICATION, "doc:1", using="postgres")
    with connections["postgres"].cursor() as cursor, pytest.raises(Exception, match="connection"):
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    done = 0
    for _ in range(3):
        try:
            done += relay.once()
        except Exception as error:  # `run` catches it, and looks again
            assert "closed" in str(error) or "terminat" in str(error)  # noqa: PT017  # it may happen, or not
    assert done == 1
    assert [name for name, *_ in told.told] == ["doc:1"]


def test_without_django_it_says_what_to_install() -> None:
    check = "import sys; sys.modules['django'] = None; import roskva.outbox.django"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, env={"PYTHONPATH": "src"})
    assert "InvalidSetting: roskva.outbox.django needs Django" in done.stderr
