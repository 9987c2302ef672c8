"""The real service passes its own frozen transcripts, as anybody may check."""

from __future__ import annotations

import pytest

from .service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


SOME = ("04-notification", "07-offline", "14-signing-out")  # all are played at a gateway without Spark, in tests/gateway


def test_the_service_keeps_to_the_protocol(service: Service) -> None:
    only = [word for name in SOME for word in ("--only", name)]
    done = service.run("conformance", service.url, "--patience", "30", *only, timeout_s=200.0)
    assert done.returncode == 0, done.stdout
    assert [line.split() for line in done.stdout.splitlines()[:3]] == [["passed", name] for name in SOME]
    assert done.stdout.splitlines()[-1] == "3 passed, 0 failed"
