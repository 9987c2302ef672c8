"""What is logged of a connection that aiohttp serves (gateway/answering.py). Malformed requests: tests/security/test_malformed.py."""

from __future__ import annotations

import logging

import pytest
from aiohttp import web

from roskva.gateway.answering import Answering


async def nothing(request: web.BaseRequest) -> web.StreamResponse:
    return web.Response()


async def test_what_nobody_foresaw_is_logged_by_class_and_place_and_not_by_what_it_says(caplog: pytest.LogCaptureFixture) -> None:
    answering = Answering(web.Server(nothing), 1.0)
    with caplog.at_level(logging.DEBUG):
        try:
            raise LookupError("a secret")
        except LookupError as error:
            answering.log_exception("of %s", "192.0.2.1", exc_info=error)
        answering.log_exception("of %s", "192.0.2.1", exc_info=ConnectionResetError("a secret"))
        answering.log_exception("of %s", "192.0.2.1")
    (unforeseen, reset, unknown) = caplog.records
    assert unforeseen.levelname == "ERROR"
    assert "LookupError at " in unforeseen.getMessage()
    assert "test_answering.py:" in unforeseen.getMessage()
    assert (reset.levelname, unknown.levelname) == ("DEBUG", "DEBUG")
    assert "ConnectionResetError" in reset.getMessage()
    assert "secret" not in caplog.text
    assert "192.0.2.1" not in caplog.text
