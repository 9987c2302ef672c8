"""The other routes: objects, status, readiness, dead letters, metrics, the document, and the form of errors (gateway/http.py)."""

from __future__ import annotations

import json
import time
from typing import Any

import aiohttp
import msgspec
import pytest
from yarl import URL

from roskva.feed import DEAD_LETTERS, Entry, open_feed
from roskva.feed.known import known_since
from roskva.gateway import http as http_module
from roskva.gateway import inspection
from roskva.gateway.http import served
from roskva.gateway.service import Gateway
from roskva.matcher.cells import object_row, version_cell
from roskva.model import object_key, partition_of
from roskva.pipeline.health import HEALTH, HEALTH_ROW, RUNNING, Health
from roskva.table import Cell, Mutation, open_manifest, open_table
from tests.gateway.talking import Raw, channel_url, handshake, say


async def get(http: aiohttp.ClientSession, url: str) -> tuple[int, dict[str, Any]]:
    async with http.get(URL(url, encoded=True)) as answer:
        return answer.status, await answer.json()


def learn(gateway: Gateway, name: bytes, version: int, incarnation_back: int = 0) -> None:
    """Write a version as the Matcher does."""
    settings = gateway.settings
    key = object_key("demo", 0, name)
    open_feed(settings)  # whoever is the first enters its partitions into the manifest
    since = known_since(open_manifest(settings).record, partition_of(key, settings.partitions), settings.partitions)
    assert since is not None
    incarnation = since - incarnation_back
    open_table(settings).write([Mutation(object_row(key, settings.partitions), [version_cell(version, "me", incarnation)])])


NAMES: list[tuple[bytes, str]] = [
    (b"hello", "hello"),
    (b"a/b c", "a%2Fb%20c"),
    (b"a/b", "a/b"),
    (b"100%", "100%25"),
    (b"%2F", "%252F"),
    ("grüße".encode(), "gr%C3%BC%C3%9Fe"),
    (b"\xff\x00", "base64:_wA"),
    (b"..", "base64:Li4"),
    (b"what?", "what%3F"),
]


async def test_object_tells_the_known_version(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    for version, (name, in_path) in enumerate(NAMES, 2**63 - 100):
        learn(gateway, name, version)
        status, answer = await get(http, f"{gateway.url}/v1/objects/demo/{in_path}")
        assert status == 200, (name, answer)
        assert (answer["version"], answer["version_text"], answer["source"]) == (version, str(version), "me")


BAD_PATHS: list[tuple[str, int, str]] = [
    ("demo/never", 404, "unknown-object"),
    ("nobody/x", 404, "unknown-application"),
    ("demo/" + "x" * 129, 400, "invalid-name"),
    ("demo/%FF", 400, "invalid-name"),
    ("demo/base64:*", 400, "invalid-name"),
    ("demo/", 404, "unknown-path"),
]


async def test_object_errors_are_named(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    for path, status, code in BAD_PATHS:
        got, answer = await get(http, f"{gateway.url}/v1/objects/{path}")
        assert (got, answer["error"]["code"]) == (status, code), path


async def test_version_of_a_lost_feed_is_not_known(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    learn(gateway, b"old", 7, incarnation_back=1)
    status, answer = await get(http, f"{gateway.url}/v1/objects/demo/old")
    assert (status, answer["error"]["code"]) == (404, "unknown-object")


async def test_status_has_the_documented_shape(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(channel_url(gateway)) as socket:
        token = await handshake(socket)
        await say(socket, token=token)
        await socket.receive()
        _, answer = await get(http, gateway.url + "/v1/status")
    assert answer["member"] == gateway.member_id
    assert [member["id"] for member in answer["members"]] == [gateway.member_id]
    assert answer["members"][0]["address"] in gateway.url
    assert set(answer["partitions"].values()) == {gateway.member_id}
    assert (answer["sessions"], answer["connections"], answer["outstanding"]) == (1, 1, 0)
    assert answer["pipeline"].keys() >= {"alive", "state", "batch", "last_batch_age_s", "lag"}
    assert answer["pipeline"]["alive"] is False
    assert answer["feed"].keys() == {"updates", "registrations", "fan-outs", "dead-letters"}
    assert "version" in answer


async def test_ready_only_with_a_pipeline(gateway: Gateway, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "READY_S", 0.0)
    status, answer = await get(http, gateway.url + "/readyz")
    assert status == 503
    assert answer["reasons"] == ["the pipeline is not running"]
    report: dict[str, Any] = {"alive": True, "state": "running", "batch": None, "last_batch_age_s": None, "lag": {"updates": {"0": 3}}}
    monkeypatch.setattr(inspection, "_read_health", lambda table, feed: report)
    assert (await get(http, gateway.url + "/readyz"))[1]["reasons"] == ["the pipeline has not finished a batch yet"]
    report["lag"] = {"updates": {"0": 0}}  # idle and alive
    assert await get(http, gateway.url + "/readyz") == (200, {"ready": True, "reasons": []})
    report |= {"batch": 7, "lag": {"updates": {"0": 3}}}
    assert (await get(http, gateway.url + "/readyz"))[0] == 200


async def test_status_tells_what_the_pipeline_said(gateway: Gateway, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch) -> None:
    async with http.post(gateway.url + "/v1/publish", json={"application": "demo", "object": "a", "version": 1}) as published:
        assert published.status == 200
    _, answer = await get(http, gateway.url + "/v1/status")
    assert answer["pipeline"]["alive"] is False
    assert sum(answer["pipeline"]["lag"]["updates"].values()) == 1
    now_ms = time.time_ns() // 1_000_000
    monkeypatch.setattr(http_module, "READY_S", 0.0)

    def tell(counter: int, **changes: Any) -> None:
        said = Health("boot", 1, RUNNING, now_ms, now_ms, batch=3, batch_finished_ms=now_ms - 2_000, lag={"updates/2": 5})
        value = msgspec.json.encode(msgspec.structs.replace(said, **changes))
        open_table(gateway.settings).write([Mutation(HEALTH_ROW, [Cell(HEALTH, counter, value)])])

    tell(1)
    pipeline = (await get(http, gateway.url + "/v1/status"))[1]["pipeline"]
    assert (pipeline["alive"], pipeline["state"], pipeline["batch"], pipeline["lag"]) == (True, "running", 3, {"updates": {"2": 5}})
    assert 2.0 <= pipeline["last_batch_age_s"] < 20.0
    assert (await get(http, gateway.url + "/readyz"))[0] == 200
    tell(2, written_ms=now_ms - 60_000)
    pipeline = (await get(http, gateway.url + "/v1/status"))[1]["pipeline"]
    assert (pipeline["alive"], pipeline["state"]) == (False, "silent")
    tell(3, state="stopped")
    pipeline = (await get(http, gateway.url + "/v1/status"))[1]["pipeline"]
    assert (pipeline["alive"], pipeline["state"]) == (False, "stopped")
    assert (await get(http, gateway.url + "/readyz"))[0] == 503


async def test_dead_letters_in_pages(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    feed = open_feed(gateway.settings)
    letters = [
        {"code": "invalid-version", "reason": "r", "application": "demo", "topic": "updates", "partition": 0, "incarnation": 1}
        | {"offset": number, "time_ms": number, "value": "{}"}
        for number in range(25)
    ]
    feed.append_once(DEAD_LETTERS, [Entry(f"k{letter['offset']}".encode(), json.dumps(letter).encode()) for letter in letters])
    seen: list[int] = []
    cursor = ""
    while True:
        status, page = await get(http, f"{gateway.url}/v1/dead-letters?limit=4&after={cursor}")
        assert status == 200
        if not page["letters"]:
            break
        assert len(page["letters"]) <= 4
        assert page["letters"][0].keys() == {"topic", "partition", "offset", "time_ms", "application", "reason", "code", "value"}
        seen += [letter["offset"] for letter in page["letters"]]
        cursor = page["next"]
    assert sorted(seen) == list(range(25))
    feed.append_once(DEAD_LETTERS, [Entry(b"later", json.dumps(letters[0] | {"offset": 99}).encode())])
    _, page = await get(http, f"{gateway.url}/v1/dead-letters?after={cursor}")
    assert [letter["offset"] for letter in page["letters"]] == [99]


async def test_dead_letters_bad_queries(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    for query in ("limit=0", "limit=1001", "limit=x", "limit=-1", "after=nonsense", "after=1-2", "after=1-2-x"):
        status, answer = await get(http, f"{gateway.url}/v1/dead-letters?{query}")
        assert (status, answer["error"]["code"]) == (400, "malformed-message"), query


async def test_openapi_lists_exactly_the_routes(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    _, answer = await get(http, gateway.url + "/v1/openapi.json")
    documented = {(method, path) for path, methods in answer["paths"].items() for method in methods}
    assert documented == served(gateway.routes.application())
    assert answer["openapi"].startswith("3.")


async def test_metrics_count_what_happened(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.post(gateway.url + "/v1/publish", json={"application": "demo", "object": "a", "version": 1}) as answer:
        assert answer.status == 200
    async with http.ws_connect(channel_url(gateway)) as socket:
        await handshake(socket)
        async with http.get(gateway.url + "/metrics") as answer:
            text = await answer.text()
            assert answer.headers["Content-Type"].startswith("text/plain")
    assert f'roskva_updates_total{{gateway="{gateway.name}",milestone="appended"}} 1.0' in text
    assert f'roskva_connections{{gateway="{gateway.name}"}} 1.0' in text
    assert f'roskva_registrar_total{{gateway="{gateway.name}",milestone="handshakes"}} 1.0' in text
    assert f'roskva_publish_milliseconds_bucket{{gateway="{gateway.name}",le="+Inf"}} 1.0' in text


async def test_unknown_path_and_method(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    status, answer = await get(http, gateway.url + "/v1/nothing")
    assert (status, answer["error"]["code"]) == (404, "unknown-path")
    async with http.get(gateway.url + "/v1/publish") as refused:
        assert refused.status == 405
        assert refused.headers["Allow"] == "POST"
        assert (await refused.json())["error"]["code"] == "unknown-path"


async def test_unforeseen_error_is_internal_without_a_stack_trace(
    gateway: Gateway, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: object) -> dict[str, Any]:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(inspection.Inspection, "status", broken)
    async with http.get(gateway.url + "/v1/status") as answer:
        assert answer.status == 500
        text = await answer.text()
    assert json.loads(text)["error"]["code"] == "internal"
    assert "secret" not in text
    assert "Traceback" not in text
    assert "secret detail" in caplog.text


async def test_broken_request_gets_no_stack_trace(gateway: Gateway) -> None:
    raw = await Raw.connect(gateway)
    await raw.send(b"GET /\x00 HTTP/9\r\nbroken\r\n\r\n")
    answer = await raw.read_to_end()
    assert answer.split(b" ")[1] == b"400"
    assert b"Traceback" not in answer
    await raw.close()


async def test_demo_page_is_served_from_the_package(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    for path, kind in [("/", "text/html"), ("/demo.css", "text/css"), ("/demo.js", "text/javascript"), ("/roskva.js", "text/javascript")]:
        async with http.get(gateway.url + path) as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith(kind)
            text = await answer.text()
            assert len(text) > 500
            assert "https://" not in text.replace("https://www.w3.org", "")  # nothing comes from elsewhere
