"""Requests that are no HTTP: whatever stands in them, logs hold neither that nor who sent it, and the answer quotes nothing."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from roskva.gateway.service import Gateway
from tests.security.conftest import STRANGER, connect_from

SECRET = b"rk_NobodyMayReadThis"
HEAD = b"POST /v1/publish HTTP/1.1\r\nHost: h\r\n"
MALFORMED = {
    "a field with a control character": b"GET /metrics HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + SECRET + b"\x01\r\n\r\n",
    "a field that is too long": b"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: " + SECRET + b"x" * 9_000 + b"\r\n\r\n",
    "too many fields": b"GET / HTTP/1.1\r\nHost: h\r\n" + b"".join(b"X-%d: %b\r\n" % (n, SECRET) for n in range(200)) + b"\r\n",
    "a field without a name": b"GET / HTTP/1.1\r\nHost: h\r\n: " + SECRET + b"\r\n\r\n",
    "no host": b"GET /" + SECRET + b" HTTP/1.1\r\n\r\n",
    "another version": b"GET /v1/objects/shop/" + SECRET + b" HTTP/9.9\r\nHost: h\r\n\r\n",
    "no version": b"GET /" + SECRET + b" x y\r\nHost: h\r\n\r\n",
    "a method that is none": b"GE@T /" + SECRET + b" HTTP/1.1\r\nHost: h\r\n\r\n",
    "a path that is too long": b"GET /" + SECRET + b"x" * 9_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
    "an address that is none": b"GET http://[" + SECRET + b"/ HTTP/1.1\r\nHost: h\r\n\r\n",
    "a length that is none": HEAD + b"Content-Length: " + SECRET + b"\r\n\r\nx",
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\nAuthorization: " + SECRET + b"\r\n\r\nhello",
    "a chunk of no size": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + SECRET + b"\r\nabc\r\n",
    "a second request": b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\nAuthorization: " + SECRET + b"\x01\r\n\r\n",
}


def check_logs(caplog: pytest.LogCaptureFixture) -> None:
    shown = [record for record in caplog.records if record.levelno >= logging.INFO]
    told = [record.getMessage() for record in shown]
    assert not [text for text in told if STRANGER in text]
    assert not [record for record in shown if record.exc_info]
    assert SECRET.decode() not in caplog.text
    assert not [record for record in caplog.records if record.name.startswith("aiohttp")]


@pytest.mark.parametrize("request_bytes", MALFORMED.values(), ids=MALFORMED)
async def test_what_is_no_request_is_answered_in_the_form_of_all_errors_and_quoted_nowhere(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, request_bytes: bytes
) -> None:
    caplog.set_level("DEBUG")
    raw = await connect_from(gateway)
    await raw.send(request_bytes)
    answer = await raw.read_to_end()
    head, _, body = answer[answer.rindex(b"HTTP/1.") :].partition(b"\r\n\r\n")
    assert b" 400 " in head.partition(b"\r\n")[0]
    assert b"application/json" in head
    assert json.loads(body)["error"]["code"] == "malformed-message"
    assert SECRET not in answer
    await raw.close()
    check_logs(caplog)
    (noted,) = [record for record in caplog.records if record.name == "roskva.gateway.answering"]
    assert noted.levelname == "DEBUG"


@pytest.mark.parametrize("body", [SECRET, b"6\r\n" + SECRET[:6] + b"\r\n"], ids=["with a length", "in chunks"])
async def test_who_hangs_up_within_a_request_is_not_logged(gateway: Gateway, caplog: pytest.LogCaptureFixture, body: bytes) -> None:
    caplog.set_level("DEBUG")
    raw = await connect_from(gateway)
    framing = b"Content-Length: 100" if body == SECRET else b"Transfer-Encoding: chunked"
    await raw.send(HEAD + framing + b"\r\n\r\n" + body)
    async with asyncio.timeout(10):
        while not gateway.port.http_connections():
            await asyncio.sleep(0.01)
        raw.writer.transport.abort()
        while gateway.port.http_connections():
            await asyncio.sleep(0.01)
    check_logs(caplog)
    assert "ConnectionResetError" in caplog.text


@pytest.mark.parametrize("path", ["/healthz", "/v1/nothing", "/v1/status", "/"])
async def test_no_answer_tells_versions(gateway: Gateway, path: str) -> None:
    raw = await connect_from(gateway)
    await raw.send(b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % path.encode())
    head = await raw.read_head()
    assert b"\r\nServer: roskva\r\n" in head
    assert b"ython" not in head
    assert b"aiohttp" not in head
    await raw.close()
