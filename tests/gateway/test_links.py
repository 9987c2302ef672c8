"""Several gateways on one data directory: messages find the owner, and move with it (gateway/links.py, gateway/routing.py).

The Matcher's part is played by calls at the internal port, as the pipeline's tasks make them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from roskva.address import address_of, bound_socket, host_and_port
from roskva.config import ApplicationSettings
from roskva.gateway.frames import FrameConnection
from roskva.gateway.hinting import Hinting
from roskva.gateway.links import Links
from roskva.gateway.service import Gateway
from roskva.keys import load_keys
from roskva.model import (
    NOT_OWNER,
    OUTCOME_UPDATE,
    OUTCOME_VERSION,
    SETTLED,
    UNAVAILABLE,
    ClientId,
    Propagation,
    Stamps,
    Update,
    client_partition,
    name_of,
    object_key,
    rendezvous,
    seqno_of,
)
from roskva.propagation.link import Link, LinkBroken
from roskva.protocol.internal import (
    NONCE_BYTES,
    Announce,
    Challenge,
    Forward,
    Frame,
    Hello,
    Probe,
    Probed,
    Propagate,
    Propagated,
    Prove,
    callee_proof,
    caller_proof,
)
from roskva.protocol.tokens import Claims
from roskva.registrar.members import Member, member_cell
from roskva.registrar.service import Registrar
from tests.gateway.conftest import Start
from tests.gateway.talking import channel_url, handshake, hear, hear_until, say

FAST = {"member_heartbeat_s": 0.2, "member_timeout_s": 2.0}


async def both(start: Start, **changes: object) -> tuple[Gateway, Gateway]:
    one, two = await start("left", **FAST, **changes), await start("two", **FAST, **changes)
    async with asyncio.timeout(10):
        while not (_linked(one, two) and _linked(two, one)):
            await asyncio.sleep(0.02)
    return one, two


def _linked(one: Gateway, two: Gateway) -> bool:
    link = one.links._links.get(two.member_id)
    return link is not None and link.up and two.member_id in one.view.live


def owner_of(gateway: Gateway, token: str) -> str:
    claims = gateway.router._keyring.verify(token)
    owner = gateway.view.owner(client_partition(claims.client, gateway.settings.partitions))
    assert owner is not None
    return owner.id


def claims_of(gateway: Gateway, token: str) -> tuple[ClientId, int]:
    claims = gateway.router._keyring.verify(token)
    return claims.client, claims.session


async def propagate(gateway: Gateway, propagations: list[Propagation]) -> list[int]:
    """As a task of the pipeline: blocking, from a thread."""

    def call() -> list[int]:
        import time

        link = Link(gateway.membership.member, load_keys(gateway.settings.data).internal, 5.0)
        try:
            link.send(Propagate(1, propagations), time.monotonic() + 5)
            answer = link.receive(time.monotonic() + 5)
            assert isinstance(answer, Propagated)
            return answer.verdicts
        finally:
            link.close()

    return await asyncio.to_thread(call)


async def client_at_the_other(http: aiohttp.ClientSession, at: Gateway, owner: Gateway) -> tuple[Any, str]:
    """A client that is connected at one gateway and owned by the other: it began there and came here."""
    async with http.ws_connect(channel_url(owner)) as first:
        token = await handshake(first)
    assert owner_of(at, token) == owner.member_id
    return await http.ws_connect(channel_url(at)), token


async def test_message_for_another_owner_is_passed_on_and_answered(start: Start, http: aiohttp.ClientSession) -> None:
    one, two = await both(start)
    socket, token = await client_at_the_other(http, one, two)
    await say(socket, token=token)
    assert (await hear(socket))["token"] == token
    assert one.metrics.messages_forwarded >= 1
    assert two.registrar.sessions
    assert not one.registrar.sessions
    await socket.close()
    async with asyncio.timeout(5):
        while two.registrar.sessions:  # told that the connection closed
            await asyncio.sleep(0.02)


async def test_notification_reaches_a_client_at_the_other_gateway(start: Start, http: aiohttp.ClientSession) -> None:
    one, two = await both(start)
    socket, token, update = await registered_at_the_other(one, two, http)
    update = update._replace(version=8)
    answer = asyncio.create_task(propagate(two, [update]))
    assert (await hear_until(socket, "notify"))["notify"][0]["version"] == "8"
    await say(socket, token=token, acks=[{"object": "hello", "seqno": str(update.seqno), "version": "8"}])
    assert await answer == [SETTLED]
    assert await propagate(one, [update]) == [NOT_OWNER]
    await socket.close()


async def registered_at_the_other(one: Gateway, two: Gateway, http: aiohttp.ClientSession) -> tuple[Any, str, Propagation]:
    """A client that is connected at `one`, owned by `two`, registered for "hello", and told of version 7."""
    socket, token = await client_at_the_other(http, one, two)
    await say(socket, token=token, register=[{"op": 1, "object": "hello"}])
    await hear_until(socket, "summary")
    client, session = claims_of(one, token)
    async with asyncio.timeout(10):
        while not (row := two.registrar.sessions.get(client)) or not row.pending:
            await asyncio.sleep(0.02)
    registered = Propagation(client, object_key("demo", 0, b"hello"), seqno_of(session, 1), OUTCOME_VERSION, 7)
    answer = asyncio.create_task(propagate(two, [registered]))
    notify = (await hear_until(socket, "notify"))["notify"][0]
    assert (notify["object"], notify["version"]) == ("hello", "7")
    await say(socket, token=token, acks=[{"object": "hello", "seqno": notify["seqno"], "version": "7"}])
    assert await answer == [SETTLED]
    return socket, token, registered._replace(outcome=OUTCOME_UPDATE, seqno=int(notify["seqno"]))


@pytest.mark.parametrize("fast_path", [True, False])
async def test_an_accepted_update_reaches_clients_of_the_other_gateway_without_the_pipeline(
    start: Start, http: aiohttp.ClientSession, fast_path: bool
) -> None:
    """None runs here: what is heard of the publish came over the link (DESIGN 6, fast path; at both the accepting and the telling side)."""
    one, two = await both(start, fast_path=fast_path)
    socket, token, update = await registered_at_the_other(one, two, http)
    async with http.post(f"{one.url}/v1/publish", json={"application": "demo", "object": "hello", "version": 8}) as response:
        assert response.status == 200
    if fast_path:
        notify = (await hear_until(socket, "notify"))["notify"][0]
        assert (notify["version"], two.registrar.counters.sent_at_once) == ("8", 1)
        await say(socket, token=token, acks=[{"object": "hello", "seqno": notify["seqno"], "version": "8"}])
        async with asyncio.timeout(10):
            while two.registrar.counters.acknowledged < 2:
                await asyncio.sleep(0.01)
        assert await propagate(two, [update._replace(version=8)]) == [SETTLED]
        assert two.registrar.counters.sent == 1, "the pipeline sent nothing more"
    else:
        answer = asyncio.create_task(propagate(two, [update._replace(version=8)]))
        assert (await hear_until(socket, "notify"))["notify"][0]["version"] == "8"
        await say(socket, token=token, acks=[{"object": "hello", "seqno": str(update.seqno), "version": "8"}])
        assert await answer == [SETTLED]
        assert two.registrar.counters.sent_at_once == 0
    await socket.close()


async def test_what_nobody_follows_waits_before_nothing_at_either_gateway(
    start: Start, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await both(start)
    socket, _, _ = await registered_at_the_other(one, two, http)
    waited: list[tuple[str, bytes]] = []
    for name, gateway in (("one", one), ("two", two)):

        def hint(updates: Sequence[Update], stamps: Sequence[Stamps], of: Gateway = gateway, name: str = name) -> None:
            waited.extend((name, name_of(update.object)) for update in updates)
            assert {stamp.object for stamp in stamps} <= {update.object for update in updates}
            Hinting.hint(of._hinting, updates, stamps)

        monkeypatch.setattr(gateway._hinting, "hint", hint)
    updates = [{"object": f"nobody-{number}", "version": 1} for number in range(50)]
    updates.insert(25, {"object": "hello", "version": 8})
    async with http.post(f"{one.url}/v1/publish", json={"application": "demo", "updates": updates}) as response:
        assert response.status == 200
    assert (await hear_until(socket, "notify"))["notify"][0]["version"] == "8"
    assert waited == [("two", b"hello")]
    await socket.close()


async def test_returning_client_is_handshaken_by_the_owner_of_its_id(start: Start, http: aiohttp.ClientSession) -> None:
    one, two = await both(start)
    socket, token = await client_at_the_other(http, one, two)
    again = await handshake(socket, prior=token)
    assert claims_of(one, again)[0] == claims_of(one, token)[0]
    assert claims_of(one, again)[1] == claims_of(one, token)[1] + 1
    assert two.registrar.counters.handshakes == 2
    await socket.close()


async def test_connections_are_announced_to_the_new_owner(start: Start, http: aiohttp.ClientSession) -> None:
    one = await start("left", **FAST)
    async with http.ws_connect(channel_url(one)) as socket:
        tokens = []
        sockets = [socket] + [await http.ws_connect(channel_url(one)) for _ in range(15)]
        for number, each in enumerate(sockets):
            tokens.append(await handshake(each, f"device{number}"))
            await say(each, token=tokens[-1])
            await hear(each)
        assert len(one.registrar.sessions) == 16
        two = await start("two", **FAST)
        async with asyncio.timeout(10):
            while len(one.registrar.sessions) + len(two.registrar.sessions) < 16 or not two.registrar.sessions:
                await asyncio.sleep(0.05)
        moved = set(two.registrar.sessions)
        expected = {claims_of(one, token)[0] for token in tokens if owner_of(one, token) == two.member_id}
        assert moved == expected
        await two.stop()  # it says goodbye: they come back
        async with asyncio.timeout(10):
            while len(one.registrar.sessions) < 16:
                await asyncio.sleep(0.05)
        for each, token in zip(sockets, tokens, strict=True):
            await say(each, token=token)
            while (await hear(each)).get("token") != token:
                pass
        for each in sockets[1:]:
            await each.close()


async def test_connections_are_announced_at_every_change_of_members_also_to_an_owner_that_stays(
    start: Start, http: aiohttp.ClientSession
) -> None:
    """The owner saw a member that this gateway never saw, and let go of its sessions to it: it has them again without their clients."""
    one, two = await both(start)
    socket, token = await client_at_the_other(http, one, two)
    await say(socket, token=token)
    await hear(socket)
    client, _ = claims_of(one, token)
    partition = client_partition(client, one.settings.partitions)
    identities = [f"m{number}" for number in range(100)]
    taker = next(name for name in identities if rendezvous(partition, ["left", "two", name]) == name)
    bystander = next(name for name in identities if rendezvous(partition, ["left", "two", name]) == "two")

    two.view.observe([member_cell(Member(taker, unused_address(), "127.0.0.1:1"), 1)], two.membership.clock())
    two.membership._tell()
    assert client not in two.registrar.sessions
    async with asyncio.timeout(10):
        while not two.registrar.owns(partition):  # nobody answers there: suspected, and left out again
            await asyncio.sleep(0.02)

    await start(bystander, **FAST)
    async with asyncio.timeout(10):
        while client not in two.registrar.sessions:
            await asyncio.sleep(0.02)
    assert owner_of(one, token) == two.member_id
    await socket.close()


def unused_address() -> str:
    """Where nobody listens."""
    with bound_socket("127.0.0.1:0") as held:
        return address_of(*held.getsockname())


async def test_broken_link_is_made_again_and_connections_announced(start: Start, http: aiohttp.ClientSession) -> None:
    """Trap 41: behind the new link is perhaps an owner that restarted, and knows nobody."""
    one, two = await both(start)
    socket, token = await client_at_the_other(http, one, two)
    await say(socket, token=token)
    await hear(socket)
    client, _ = claims_of(one, token)
    session = two.registrar.sessions[client]
    one.links._links[two.member_id]._connection.abort()  # type: ignore[union-attr]
    async with asyncio.timeout(10):
        while two.registrar.sessions.get(client) in (None, session):
            await asyncio.sleep(0.02)
    await say(socket, token=token)
    while (await hear(socket)).get("token") != token:
        pass
    await socket.close()


async def test_no_link_to_the_owner_is_a_transient_error(start: Start, http: aiohttp.ClientSession) -> None:
    one, two = await both(start)
    socket, token = await client_at_the_other(http, one, two)
    one.links._links.pop(two.member_id).stop()
    await say(socket, token=token)
    error = (await hear_until(socket, "error"))["error"]
    assert (error["code"], error["transient"]) == ("unavailable", True)
    await socket.close()


async def test_gateway_that_dies_is_replaced(start: Start, http: aiohttp.ClientSession) -> None:
    one, two = await both(start)
    socket, token = await client_at_the_other(http, one, two)
    await say(socket, token=token)
    await hear(socket)
    two.membership._beating.cancel()  # type: ignore[union-attr]  # it hangs: no heartbeat any more
    async with asyncio.timeout(10):
        while claims_of(one, token)[0] not in one.registrar.sessions:
            await asyncio.sleep(0.05)
    await say(socket, token=token)
    while (await hear(socket)).get("token") != token:
        pass
    await socket.close()


async def raw_caller(gateway: Gateway) -> tuple[FrameConnection, asyncio.Queue[Frame | None]]:
    frames: asyncio.Queue[Frame | None] = asyncio.Queue()
    host, port = host_and_port(gateway.membership.member.internal)
    _, caller = await asyncio.get_running_loop().create_connection(
        lambda: FrameConnection(lambda _, frame: frames.put_nowait(frame), None, lambda _: frames.put_nowait(None)), host, port
    )
    return caller, frames


async def test_internal_port_wants_proof(start: Start) -> None:
    gateway = await start()
    key = load_keys(gateway.settings.data).internal
    hello = Hello(b"n" * NONCE_BYTES, "caller", gateway.member_id)
    for begun in (False, True):
        for wrong in (Prove(b"wrong"), Probe(1), Announce(1, "token"), hello if begun else Prove(caller_proof(key, hello, b""))):
            caller, frames = await raw_caller(gateway)
            async with asyncio.timeout(5):
                if begun:
                    caller.send(hello)
                    assert isinstance(await frames.get(), Challenge)
                caller.send(wrong)
                assert await frames.get() is None  # closed
    caller, frames = await raw_caller(gateway)
    async with asyncio.timeout(5):
        caller.send(hello)
        challenge = await frames.get()
        assert isinstance(challenge, Challenge)
        assert challenge.mac == callee_proof(key, hello, challenge.nonce)
        caller.send(Prove(caller_proof(key, hello, challenge.nonce)))
        caller.send(Probe(7))
        assert await frames.get() == Probed(7)
    caller.close()


async def test_a_call_for_another_member_or_with_the_proof_of_the_other_side_is_refused(start: Start) -> None:
    gateway = await start()
    key = load_keys(gateway.settings.data).internal
    caller, frames = await raw_caller(gateway)
    async with asyncio.timeout(5):
        caller.send(Hello(b"n" * NONCE_BYTES, "caller", "dead"))  # relayed by whoever listens there
        assert await frames.get() is None
        hello = Hello(b"n" * NONCE_BYTES, "caller", gateway.member_id)
        for member, role in (("caller", callee_proof), ("other", caller_proof)):
            caller, frames = await raw_caller(gateway)
            caller.send(hello)
            challenge = await frames.get()
            assert isinstance(challenge, Challenge)
            caller.send(Prove(role(key, Hello(hello.nonce, member, hello.member), challenge.nonce)))
            assert await frames.get() is None


@pytest.mark.parametrize("knows", ["nothing", "how to relay", "how to reflect"])
async def test_whoever_listens_at_a_dead_gateways_port_is_told_nothing(start: Start, knows: str) -> None:
    living = await start()
    key = load_keys(living.settings.data).internal
    told: list[Frame] = []
    losses: list[object] = []

    def impostor() -> FrameConnection:
        return FrameConnection(asked, None, losses.append)

    def asked(connection: FrameConnection, frame: Frame) -> None:
        told.append(frame)
        if isinstance(frame, Hello):
            tasks.append(asyncio.ensure_future(answer(connection, frame)))

    async def answer(connection: FrameConnection, hello: Hello) -> None:
        if knows == "nothing":
            connection.send(Challenge(b"x" * NONCE_BYTES, b"x" * 32))
            return
        caller, frames = await raw_caller(living)  # whose proof may be good for this one, too
        caller.send(hello if knows == "how to reflect" else Hello(hello.nonce, hello.caller, living.member_id))
        challenge = await frames.get()
        if isinstance(challenge, Challenge):
            connection.send(challenge)
        else:
            connection.close()
        caller.close()

    class Told:
        def link_up(self, member: str) -> None:
            links.send(member, Forward(1, b'{"credential": "C"}'))

    tasks: list[asyncio.Future[None]] = []
    server = await asyncio.get_running_loop().create_server(impostor, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    links = Links(key, "me", lambda member: None)
    links.router = Told()  # type: ignore[assignment]
    dead = Member("dead", f"127.0.0.1:{port}", "")
    links.members_changed({"dead": dead})
    try:
        async with asyncio.timeout(10):
            while len(losses) < 2 and all(isinstance(frame, Hello) for frame in told):  # it tries again
                await asyncio.sleep(0.01)
        assert {type(frame) for frame in told} == {Hello}
        with pytest.raises(LinkBroken):
            await asyncio.to_thread(Link, dead, key, 5.0)
        assert {type(frame) for frame in told} == {Hello}
    finally:
        links.stop()
        server.close()
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks)


async def test_unreadable_and_oversized_frames_end_the_connection(start: Start) -> None:
    gateway = await start()
    for garbage in (b"\x00\x00\x00\x02\xc1\xc1", b"\xff\xff\xff\xff"):
        caller, frames = await raw_caller(gateway)
        async with asyncio.timeout(5):
            caller._transport.write(garbage)  # type: ignore[union-attr]
            assert await frames.get() is None


async def test_two_gateways_show_each_other_in_status(start: Start, http: aiohttp.ClientSession) -> None:
    one, two = await both(start)
    async with http.get(one.url + "/v1/status") as answer:
        status = json.loads(await answer.text())
    assert {member["id"] for member in status["members"]} == {one.member_id, two.member_id}
    assert set(status["partitions"].values()) <= {one.member_id, two.member_id}


async def test_a_forwarded_message_whose_token_this_gateway_cannot_verify_starts_anew(start: Start) -> None:
    """Else its client would repeat it for ever: an `error` alone changes nothing about its token."""
    gateway = await start("left", **FAST)
    sent: list[bytes] = []

    class Remote:
        token = ""
        claims: Claims | None = None
        session: object | None = None

        def send(self, data: bytes) -> None:
            sent.append(data)

        def close(self, code: str) -> None:
            raise AssertionError(code)

    gateway.router.forwarded(Remote(), json.dumps({"token": "of-a-newer-key", "acks": []}).encode())
    assert [json.loads(data)["start_anew"]["code"] for data in sent] == ["token-invalid"]


async def test_a_tuple_that_cannot_be_judged_is_logged_without_the_name_of_its_object(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(registrar: Registrar, propagations: list[Propagation]) -> list[int]:
        raise ZeroDivisionError

    monkeypatch.setattr(Registrar, "propagate", fail)
    gateway = await start(applications={"demo": ApplicationSettings(private_names=True)})
    told = Propagation(ClientId("somebody"), object_key("demo", 0, b"a-private-name"), 7, OUTCOME_UPDATE, 1)
    assert await propagate(gateway, [told]) == [UNAVAILABLE]
    assert "could not be judged: client somebody, registration 7" in caplog.text
    assert "private-name" not in caplog.text
