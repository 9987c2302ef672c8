"""The secret by which publishers know what one of them wrote into the database's log."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from roskva.capture.datamarkers import SqliteDatamarkers
from roskva.capture.publisher.notes import secret_of
from roskva.capture.running.publisher import _prepared
from tests.capture.shell.numberlog import NumberLog


def test_it_is_the_same_for_all_publishers_of_the_data_also_after_a_restart(tmp_path: Path) -> None:
    place = tmp_path / "datamarkers"
    with closing(SqliteDatamarkers(place, "shop")) as first, closing(SqliteDatamarkers(place, "shop")) as second:
        secret = secret_of(first)
        assert len(secret) == 32
        assert secret_of(second) == secret_of(first) == secret
    with closing(SqliteDatamarkers(place, "shop")) as later, closing(SqliteDatamarkers(tmp_path / "others", "shop")) as others:
        assert secret_of(later) == secret
        assert secret_of(others) != secret


def test_a_datastore_that_signs_has_it_before_it_is_prepared(tmp_path: Path) -> None:
    class Signs(NumberLog):
        signed = ""

        def sign_with(self, secret: object) -> None:
            self.secret = secret

        def prepare(self) -> None:
            assert callable(self.secret)
            self.signed = self.secret()

    with closing(SqliteDatamarkers(tmp_path / "datamarkers", "shop")) as marks, closing(Signs(tmp_path / "numbers")) as log:
        assert _prepared(log, marks) is log
        assert log.signed == secret_of(marks)
