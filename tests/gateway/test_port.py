"""The one port: what goes to picows, what to aiohttp, and what is refused (gateway/server.py, gateway/websocket.py)."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp
import pytest
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # private: its stub does not name it

from roskva.gateway import opening, server, websocket
from roskva.gateway.service import Gateway
from roskva.protocol.tokens import Claims, Keyring
from tests.gateway.conftest import Start
from tests.gateway.talking import UPGRADE, Raw, channel_url, close_of, frame, handshake, hear, hear_until, say


async def test_websocket_and_http_share_the_port(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(channel_url(gateway)) as socket, http.get(gateway.url + "/healthz") as answer:
        assert answer.status == 200
        assert await handshake(socket)
    (protocol,) = {type(gateway.port.websocket(websocket.WebSocketConnection(gateway.port, "", "")))}
    assert issubclass(protocol, WSProtocol)


async def test_upgrade_in_many_small_pieces(gateway: Gateway) -> None:
    raw = await Raw.connect(gateway)
    for start in range(0, len(UPGRADE), 7):
        await raw.send(UPGRADE[start : start + 7])
        await asyncio.sleep(0.001)
    assert (await raw.read_head()).startswith(b"HTTP/1.1 101 ")
    await raw.close()


async def test_upgrade_and_first_message_in_one_piece(gateway: Gateway) -> None:
    raw = await Raw.connect(gateway)
    init = json.dumps({"init": {"nonce": "n", "application": "demo", "device": "d" * 100}, "padding": "x" * 5_000}).encode()
    await raw.send(UPGRADE + frame(1, init))  # longer than picows' first buffer
    assert (await raw.read_head()).startswith(b"HTTP/1.1 101 ")
    async with asyncio.timeout(10):
        assert b'"grant"' in await raw.reader.read(4096)
    await raw.close()


async def test_connection_used_for_http_before_falls_back_to_aiohttp(gateway: Gateway) -> None:
    raw = await Raw.connect(gateway)
    await raw.send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await raw.read_head()).startswith(b"HTTP/1.1 200 ")
    await raw.reader.readexactly(len(b'{"alive":true}'))
    await raw.send(UPGRADE)
    assert (await raw.read_head()).startswith(b"HTTP/1.1 101 ")
    await raw.send(frame(1, b'{"init":{"nonce":"n","application":"demo","device":"d"}}'))
    async with asyncio.timeout(10):
        assert b'"grant"' in await raw.reader.read(4096)
    await raw.send(frame(2, b"binary"))
    async with asyncio.timeout(10):
        rest = await raw.reader.read(4096)
        while len(rest) < 2 or b"binary-frame" not in rest:
            rest += await raw.reader.read(4096)
    assert b"malformed-message" in rest
    await raw.close()


async def test_channel_without_upgrade_says_what_is_missing(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.get(gateway.url + "/v1/channel") as answer:
        assert answer.status == 426
        assert (await answer.json())["error"]["code"] == "malformed-message"


async def test_page_of_another_origin_is_refused(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await http.ws_connect(channel_url(gateway), origin="http://elsewhere.example")
    assert refused.value.status == 403
    async with http.post(gateway.url + "/v1/publish", data=b"{}", headers={"Origin": "http://elsewhere.example"}) as answer:
        assert answer.status == 403
        assert (await answer.json())["error"]["code"] == "origin-refused"
    async with http.ws_connect(channel_url(gateway), origin=gateway.url) as socket:
        assert await handshake(socket)


async def test_binary_frame_gets_a_named_error_and_close_code_1003(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(channel_url(gateway)) as socket:
        await socket.send_bytes(b"\x00\x01")
        assert (await hear(socket))["error"]["code"] == "malformed-message"
        assert await close_of(socket) == (1003, "binary-frame")


MALFORMED = [
    "",
    "no json",
    "[]",
    "{}",
    '{"register": "x"}',
    '{"token": 7}',
    '{"init": {"nonce": "n"}}',
    '{"token": "t", "acks": [{"object": "a", "seqno": 7}]}',
    '{"token": "' + "t" * 600 + '"}',
    "[" * 5_000,
    '{"summary": {"count": -1, "digest": "x"}}',
]


async def test_malformed_message_is_answered_and_the_connection_kept(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    for text in MALFORMED:
        async with http.ws_connect(channel_url(gateway)) as socket:
            await socket.send_str(text)
            error = (await hear(socket))["error"]
            assert error["code"] == "malformed-message", text
            assert "Traceback" not in error["message"]
            assert await handshake(socket)


async def test_ten_malformed_messages_in_a_row_close_the_connection(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(channel_url(gateway)) as socket:
        for _ in range(9):
            await socket.send_str("nonsense")
            await hear(socket)
        await handshake(socket)  # a good one in between: the count begins anew
        for _ in range(9):
            await socket.send_str("nonsense")
            await hear_until(socket, "error")
        await socket.send_str("nonsense")
        assert await close_of(socket) == (1008, "malformed-message")


async def test_unknown_fields_of_messages_are_ignored(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(channel_url(gateway)) as socket:
        await say(socket, init={"nonce": "n", "application": "demo", "device": "d", "colour": "red"}, later={"a": [1]})
        assert "grant" in await hear(socket)


async def test_oversized_frame_is_refused_with_1009(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(message_bytes_max=10_000)
    async with http.ws_connect(channel_url(gateway)) as socket:
        await socket.send_str(json.dumps({"padding": "x" * 10_001}))
        code, _ = await close_of(socket)
        assert code == 1009
    raw = await Raw.connect(gateway)
    await raw.send(UPGRADE)
    await raw.read_head()
    await raw.send(frame(1, b"x" * 6_000, fin=False) + frame(0, b"x" * 6_000, fin=True))  # too large only together
    answer = await raw.reader.read(4096)
    assert b"message-too-large" in answer
    await raw.close()


async def test_fragmented_message_is_put_together(gateway: Gateway) -> None:
    raw = await Raw.connect(gateway)
    await raw.send(UPGRADE)
    await raw.read_head()
    text = b'{"init":{"nonce":"n","application":"demo","device":"d"}}'
    await raw.send(frame(1, text[:10], fin=False) + frame(9, b"ping") + frame(0, text[10:20], fin=False) + frame(0, text[20:]))
    async with asyncio.timeout(10):
        answer = await raw.reader.read(4096)
        while b'"grant"' not in answer:
            answer += await raw.reader.read(4096)
    assert b"ping" in answer
    await raw.close()


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (frame(0, b"continuation of nothing"), 1002),
        (frame(1, b"{", fin=False) + frame(1, b"}"), 1002),
        (frame(1, b"{}", rsv1=True), 1002),
        (frame(1, b"{}", mask=False), 1002),
        (frame(3, b""), 1002),
    ],
    ids=["stray continuation", "interleaved", "compressed", "unmasked", "unknown opcode"],
)
async def test_broken_frames_close_with_1002(gateway: Gateway, bad: bytes, code: int) -> None:
    raw = await Raw.connect(gateway)
    await raw.send(UPGRADE)
    await raw.read_head()
    await raw.send(bad)
    async with asyncio.timeout(10):
        answer = await raw.reader.readexactly(4)
    assert answer[0] == 0x88, answer
    assert int.from_bytes(answer[2:4], "big") == code
    await raw.close()


async def test_100_000_registrations_in_one_message(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(channel_url(gateway)) as socket:
        token = await handshake(socket)
        await say(socket, token=token, register=[{"op": number + 1, "object": f"o{number}"} for number in range(20_000)])
        assert (await hear_until(socket, "error"))["error"]["code"] == "too-many-operations"
        await say(socket, token=token, register=[{"op": number + 1, "object": f"object{number}"} for number in range(100_000)])
        code, _ = await close_of(socket)
        assert code == 1009  # 100,000 do not even fit into one message
    async with http.get(gateway.url + "/healthz") as answer:
        assert answer.status == 200


async def test_wrong_token_is_told_to_start_anew(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(channel_url(gateway)) as socket:
        token = await handshake(socket)
        for wrong in ("nonsense", "ünsinn", token[:-3] + "AAA", token[:20], "A" * 500):
            await say(socket, token=wrong)
            answer = await hear_until(socket, "start_anew")
            assert answer["token"] == wrong
            assert answer["start_anew"]["code"] == "token-invalid"
            assert "keep" not in answer["start_anew"] or answer["start_anew"]["keep"] is False
        forged = Keyring({1: b"k" * 32}).sign(Claims("c", "demo", "d", 1, "local", 1))  # type: ignore[arg-type]
        await say(socket, token=forged)
        assert (await hear_until(socket, "start_anew"))["start_anew"]["code"] == "token-invalid"
        await say(socket, token=token)
        assert (await hear(socket))["token"] == token


async def test_token_of_another_data_center_starts_again_with_it(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(channel_url(gateway)) as socket:
        token = await handshake(socket)
        keyring = gateway.router._keyring
        elsewhere = keyring.sign(keyring.verify(token)._replace(data_center="elsewhere"))
        await say(socket, token=elsewhere)
        answer = await hear_until(socket, "start_anew")
        assert answer["start_anew"]["code"] == "token-elsewhere"
        assert answer["start_anew"]["keep"] is True


async def test_unknown_application_is_named(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(channel_url(gateway)) as socket:
        await say(socket, init={"nonce": "n", "application": "nobody", "device": "d"})
        assert (await hear_until(socket, "error"))["error"]["code"] == "unknown-application"


async def test_half_open_connection_is_closed_after_the_wait(gateway: Gateway) -> None:
    silent, half = await Raw.connect(gateway), await Raw.connect(gateway)
    await half.send(b"POST /v1/publish HTTP/1.1\r\nHost:")
    await asyncio.sleep(0.1)
    gateway.port.sweep(time.monotonic() + opening.OPENING_S - 1)
    assert len(gateway.port.openings) == 2  # not yet
    gateway.port.sweep(time.monotonic() + opening.OPENING_S + 1)
    assert await silent.read_to_end() == b""
    assert await half.read_to_end() == b""
    assert not gateway.port.openings
    await silent.close()
    await half.close()


async def test_websocket_over_which_no_session_speaks_is_closed(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    async with http.ws_connect(channel_url(gateway)) as silent, http.ws_connect(channel_url(gateway)) as speaking:
        await say(speaking, token=await handshake(speaking))
        await hear_until(speaking, "summary")
        gateway.port.sweep(time.monotonic() + server.SILENT_S + 1)
        assert await close_of(silent) == (1008, "silent")
        await speaking.ping()
        assert len(gateway.router.connections) >= 1
        token = await handshake(speaking, "again")
        await say(speaking, token=token)
        assert (await hear(speaking))["token"] == token


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"\x16\x03\x01\x02\x00\x01", b"400"), (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 4_000, b"431")],
    ids=["TLS on a plain port", "endless head"],
)
async def test_what_is_no_request_is_refused(gateway: Gateway, sent: bytes, status: bytes) -> None:
    raw = await Raw.connect(gateway)
    await raw.send(sent)
    assert (await raw.read_head()).split(b" ")[1] == status
    await raw.close()


async def test_connections_beyond_the_limit_are_refused(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(connections_max=2)
    async with http.ws_connect(channel_url(gateway)), http.ws_connect(channel_url(gateway)):
        raw = await Raw.connect(gateway)
        assert (await raw.read_head()).startswith(b"HTTP/1.1 503 ")
        await raw.close()
    await asyncio.sleep(0.1)
    async with http.get(gateway.url + "/healthz") as answer:
        assert answer.status == 200


async def test_http_connections_that_are_kept_open_count_too(start: Start) -> None:
    gateway = await start(connections_max=3)
    raws = []
    for _ in range(3):
        raws.append(await Raw.connect(gateway))
        await raws[-1].send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await raws[-1].read_head()).startswith(b"HTTP/1.1 200 ")
    refused = await Raw.connect(gateway)
    assert (await refused.read_head()).startswith(b"HTTP/1.1 503 ")
    await refused.close()
    for raw in raws:
        await raw.close()
    async with asyncio.timeout(5):
        while gateway.port.full():
            await asyncio.sleep(0.01)
    raw = await Raw.connect(gateway)
    await raw.send(UPGRADE)
    assert (await raw.read_head()).startswith(b"HTTP/1.1 101 ")
    assert gateway.port._websockets == 1
    await raw.close()
    async with asyncio.timeout(5):
        while gateway.port._websockets:
            await asyncio.sleep(0.01)


async def test_slow_client_is_bounded_and_then_disconnected(gateway: Gateway) -> None:
    raw = await Raw.connect(gateway)
    raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await raw.send(UPGRADE)
    async with asyncio.timeout(5):
        while not gateway.router.connections:
            await asyncio.sleep(0.01)
    (connection,) = gateway.router.connections.values()
    message = b"x" * 10_000
    for _ in range(2_000):  # 20 MB: far more than kernel and buffer take
        connection.send(message)
    assert connection in gateway.port.paused
    assert isinstance(connection, websocket.WebSocketConnection)
    assert connection._transport is not None
    transport = connection._transport.underlying_transport
    assert transport.get_write_buffer_size() <= gateway.settings.send_buffer_bytes_max + 2 * len(message)
    assert gateway.metrics.messages_dropped > 0
    gateway.port.sweep(time.monotonic())
    await asyncio.sleep(0.05)
    assert gateway.router.connections  # it has a moment to catch up
    gateway.port.sweep(time.monotonic() + websocket.SLOW_S)
    async with asyncio.timeout(5):
        while gateway.router.connections:
            await asyncio.sleep(0.01)
    assert gateway.metrics.slow_consumers == 1
    assert not gateway.port.paused
    await raw.close()


async def test_slow_client_on_a_reused_http_connection_is_disconnected_too(gateway: Gateway) -> None:
    raw = await Raw.connect(gateway)
    await raw.send(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
    await raw.read_head()
    raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await raw.send(UPGRADE)
    async with asyncio.timeout(5):
        while not gateway.router.connections:
            await asyncio.sleep(0.01)
    (connection,) = gateway.router.connections.values()
    assert isinstance(connection, websocket.HttpConnection)
    async with asyncio.timeout(5):
        while connection not in gateway.port.paused:
            connection.send(b"x" * 100_000)
            await asyncio.sleep(0)
    gateway.port.sweep(time.monotonic() + websocket.SLOW_S)
    async with asyncio.timeout(5):
        while gateway.router.connections:
            await asyncio.sleep(0.01)
    gateway.port.sweep(time.monotonic() + websocket.SLOW_S)
    assert gateway.metrics.slow_consumers == 1
    await raw.close()


async def test_client_that_catches_up_in_time_stays(gateway: Gateway) -> None:
    raw = await Raw.connect(gateway)
    raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await raw.send(UPGRADE)
    async with asyncio.timeout(5):
        while not gateway.router.connections:
            await asyncio.sleep(0.01)
    (connection,) = gateway.router.connections.values()
    while connection not in gateway.port.paused:
        connection.send(b"x" * 100_000)
    raw.writer.transport.resume_reading()  # type: ignore[attr-defined]
    async with asyncio.timeout(5):
        while connection in gateway.port.paused:
            await raw.reader.read(1 << 20)
    gateway.port.sweep(time.monotonic() + websocket.SLOW_S)
    assert gateway.metrics.slow_consumers == 0
    assert connection in gateway.router.connections.values()
    await raw.close()


async def test_stop_tells_how_slowly_to_come_back_and_closes_connections_with_1001(start: Start, http: aiohttp.ClientSession) -> None:
    gateway = await start(reconnects_per_s=0.1)
    async with http.ws_connect(channel_url(gateway)) as socket, http.ws_connect(channel_url(gateway)) as other:
        await handshake(socket)
        await handshake(other, "other")
        stopping = asyncio.create_task(gateway.stop())
        error = (await hear_until(socket, "error"))["error"]
        assert (error["code"], error["retry_after_s"], error["transient"]) == ("going-away", 20.0, True)  # two clients, one in ten seconds
        assert await close_of(socket) == (1001, "going-away")
        async with asyncio.timeout(10):
            await stopping


async def test_idle_connection_holds_no_task_and_no_timer(gateway: Gateway, http: aiohttp.ClientSession) -> None:
    before = len(asyncio.all_tasks())
    raws = [await Raw.connect(gateway) for _ in range(20)]
    for raw in raws:
        await raw.send(UPGRADE)
        await raw.read_head()
    counts = []
    for _ in range(20):  # the gateway's own rounds have tasks now and then
        await asyncio.sleep(0.05)
        counts.append(len(asyncio.all_tasks()))
    assert min(counts) <= before + 1
    assert all(not hasattr(connection, "__dict__") for connection in gateway.router.connections.values())
    for raw in raws:
        await raw.close()


async def test_frames_of_mixed_sizes_reach_a_client_that_reads_late_intact(start: Start) -> None:
    """picows queues a large message without a copy of its head, and writes the next head over it."""
    gateway = await start(send_buffer_bytes_max=64 << 20)
    raw = await Raw.connect(gateway)
    raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await raw.send(UPGRADE)
    async with asyncio.timeout(5):
        while not gateway.router.connections:
            await asyncio.sleep(0.01)
    (connection,) = gateway.router.connections.values()
    sizes = [9_000 + 7 * number if number % 2 else 50 + number % 60 for number in range(1_500)]
    for size in sizes:
        connection.send(b"x" * size)
    raw.writer.transport.resume_reading()  # type: ignore[attr-defined]
    await raw.read_head()
    async with asyncio.timeout(20):
        for size in sizes:
            first, length = await raw.reader.readexactly(2)
            if length >= 126:
                length = int.from_bytes(await raw.reader.readexactly(2 if length == 126 else 8), "big")
            assert (first, length) == (0x81, size)
            await raw.reader.readexactly(length)
    await raw.close()
