"""What all tests share: a Java that Spark can run on, and nothing of the developer's own settings."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest
from hypothesis import settings

from roskva.config import ENVIRONMENT_PREFIX, OTHER_PREFIXES
from roskva.errors import RoskvaError
from roskva.pipeline.session import find_java_home

KEPT = "ROSKVA_CI_RUN"


# How long one example takes says something of the machine and its load, and nothing of the code.
settings.register_profile("roskva", deadline=None, print_blob=True)
settings.load_profile("roskva")


def pytest_configure(config: pytest.Config) -> None:
    # A developer's ROSKVA_DATA must never meet a test, here or in a process that a test starts.
    for name in list(os.environ):
        if name.startswith(ENVIRONMENT_PREFIX) and not name.startswith(OTHER_PREFIXES) and name != KEPT:
            del os.environ[name]
    # The first Java in the path may be one that Spark does not run on. Without any, the tests that need it say so themselves.
    with suppress(RoskvaError):
        os.environ["JAVA_HOME"] = str(find_java_home())
