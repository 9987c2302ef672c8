"""The OpenAPI document is true: whatever it allows, and what it does not, is answered as it says (gateway/openapi.py; schemathesis).

Requests are drawn from the document for every operation, as it allows and as it does not. Those that would wait are drawn too, with ids of
channels that nobody opened: open ones are in test_polling.py and test_channels.py, and an upgrade to a WebSocket is no HTTP any more.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
import uvloop
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode, Response, SerializationContext
from schemathesis.checks import CheckContext
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from roskva.config import ApplicationSettings, Settings
from roskva.gateway.openapi import document
from roskva.gateway.service import Gateway
from roskva.keys import administration
from tests.gateway.conftest import close_engines

EXAMPLES = 60  # of an operation
SCHEMA = schemathesis.openapi.from_dict(document("test"))
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations() if isinstance(found, Ok)}
SPOKEN = {"POST /v1/channels/{id}", "DELETE /v1/channels/{id}", "POST /v1/channels/{id}/close"}
ANSWERED: Counter[tuple[str, int]] = Counter()


@schemathesis.serializer("application/x-ndjson")
def lines(context: SerializationContext, value: object) -> bytes:
    return value.encode(errors="surrogatepass") if isinstance(value, str) else json.dumps(value).encode()


def nothing_unforeseen(context: CheckContext, response: Response, case: Case[Any]) -> None:
    """A person who is told `internal` cannot do anything about it."""
    assert response.status_code < 500 or response.status_code == 503, response.text
    assert '"code":"internal"' not in response.text


CHECKS = [nothing_unforeseen, status_code_conformance, content_type_conformance, response_schema_conformance]


class Served:
    """A gateway in a thread of its own: the requests come from blocking calls."""

    def __init__(self, configured: Settings) -> None:
        self._settings = configured
        self._up = threading.Event()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.Runner(loop_factory=uvloop.new_event_loop).run(self._serve()))
        self.url = ""
        self.key: dict[str, str] = {}  # of operators, as a header

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        gateway = Gateway(self._settings)
        await gateway.start()
        self.url = gateway.url
        self._up.set()
        await self._over.wait()
        await gateway.stop()

    def start(self) -> None:
        self._thread.start()
        assert self._up.wait(20)
        self.key = administration(self._settings.data)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(20)
        close_engines(self._settings)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data: Path = tmp_path_factory.mktemp("schema")
    own = ApplicationSettings(object_path="doc.id", version_path="doc.rev")
    service = Served(Settings(data=data, listen="127.0.0.1:0", applications={"demo": ApplicationSettings(), "shop": own}))
    service.start()
    yield service
    service.stop()


@pytest.fixture(scope="module")
def calls() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        yield session


def cases(label: str) -> st.SearchStrategy[Case[Any]]:
    """As the document allows, and, if there is anything that could be wrong, as it does not."""
    operation = OPERATIONS[label]
    if not operation.body and not list(operation.iter_parameters()):
        return operation.as_strategy(GenerationMode.POSITIVE)
    return operation.as_strategy(GenerationMode.POSITIVE) | operation.as_strategy(GenerationMode.NEGATIVE)


@pytest.mark.parametrize("label", OPERATIONS)
def test_it_is_answered_as_documented(served: Served, calls: requests.Session, label: str) -> None:
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases(label), known=st.booleans(), operator=st.integers(0, 4))
    def answered(case: Case[Any], known: bool, operator: int) -> None:
        if known:  # else hardly anybody would guess an application's name, or a channel's
            for part in (case.path_parameters, case.body):
                if isinstance(part, dict) and "application" in part:
                    part["application"] = "demo"
            if label in SPOKEN:
                case.path_parameters["id"] = calls.post(f"{served.url}/v1/channels", timeout=20).json()["id"]
        response = case.call(base_url=served.url, session=calls, headers=served.key if operator else {}, timeout=20)
        ANSWERED[label, response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    answered()


def test_operations_were_done_and_not_only_refused() -> None:
    """After all of the above."""
    assert len(OPERATIONS) == sum(len(operations) for operations in document("test")["paths"].values())
    if {label for label, _ in ANSWERED} != OPERATIONS.keys():
        pytest.skip("not all of the above were run")
    done = {label for label, status in ANSWERED if status < 300}
    for_want_of = {  # a WebSocket, a channel, a pipeline, a client
        *("GET /v1/channel", "GET /v1/trusted", "GET /v1/channels/{id}", "GET /v1/channels/{id}/events"),
        *("GET /readyz", "GET /v1/objects/{application}/{name}", "GET /v1/inspect/clients/{id}"),
    }
    assert done == OPERATIONS.keys() - for_want_of
    assert {status for _, status in ANSWERED} >= {200, 201, 204, 400, 401, 404, 410, 426}
