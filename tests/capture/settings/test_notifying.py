"""Roskva as a subscriber: what was captured is published before the callback returns, whatever the service does meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from roskva.capture.mapping import Mapper, parse_mapping
from roskva.capture.notifying import HistoryFile, Notifier, Orders
from roskva.capture.positions import BEGINNING, Position
from roskva.capture.subscriber.callbacks import Shard
from roskva.capture.updates import Change, Operation, Update
from roskva.errors import AdministrationRefused, ClientStopped, InvalidName, InvalidSetting, RateLimited, ServiceUnreachable
from roskva.publisher import Publisher

pytestmark = pytest.mark.timeout(30)
SHARD = Shard("shop", 3)


class Service:
    """Records what it is told, over real HTTP, and answers what it is told to."""

    def __init__(self) -> None:
        self.told: list[Any] = []  # (object, version, source), ("invalidate", what) or ("reset", key), in the order of their arrival
        self.answers: dict[str, list[tuple[int, Any]]] = {}
        self.keys: list[str] = []
        self.held: asyncio.Event | None = None  # publishes wait for it
        self.waiting = 0
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        what = request.path.removeprefix("/v1/")
        self.keys.append(request.headers.get("Authorization", ""))
        if self.held is not None and what == "publish":
            self.waiting += len(body["updates"])  # several callbacks may travel in one request
            await self.held.wait()
        if self.answers.get(what):
            status, answer = self.answers[what].pop(0)
            return web.json_response(answer, status=status)
        if what == "publish":
            self.told += [(one["object"], int(one["version"]), one.get("source")) for one in body["updates"]]
            return web.json_response({"results": [{"ok": True} for _ in body["updates"]]})
        self.told.append((what, {name: value for name, value in body.items() if name != "application"}))
        return web.json_response({})


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    application = web.Application()
    application.router.add_post("/v1/{what}", service.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.2, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield service
    await runner.cleanup()


class Kept:
    """Histories, in memory."""

    def __init__(self, histories: dict[str, int] | None = None) -> None:
        self.histories = histories or {}

    def read(self) -> dict[str, int]:
        return dict(self.histories)

    def write(self, histories: dict[str, int]) -> None:
        self.histories = dict(histories)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roskva.publisher.RETRY_MIN_S", 0.01)


@pytest.fixture
async def made(service: Service) -> AsyncIterator[Any]:
    open_ones: list[Any] = []

    def make(kept: Kept | None = None, objects: Iterable[str] = ("doc:{id}",), **options: Any) -> Notifier:
        publisher = Publisher(service.url, application="demo", key="publish-key", retry_for_s=0.2)
        orders = Orders(service.url, application="demo", key="publish-key", admin_key=options.pop("admin_key", "admin-key"))
        open_ones.extend([publisher, orders])
        mapper = Mapper([parse_mapping(["documents"], list(objects), source="{by}")])
        options = {"retry_max_s": 0.05, "gather_s": 0.01} | options
        return Notifier(mapper, publisher, orders, kept or Kept(), **options)

    yield make
    for one in open_ones:
        await one.close()


def update(number: int, sequence: int, history: int = 1, operation: Operation = Operation.UPDATE, by: str | None = None) -> Update:
    columns = {"id": number, "by": by}
    return Update(3, Change(Position(history, sequence, 1), 0, operation, "shop", "documents", {"id": number}, columns))


def error(code: str, transient: bool = False) -> dict[str, Any]:
    return {"error": {"code": code, "message": f"{code} happened.", "transient": transient, "retry_after_s": 0.01}}


async def test_updates_are_published_before_the_callback_returns(service: Service, made: Any) -> None:
    notifier = made()
    await notifier.on_updates(SHARD, [update(1, 10, by="phone"), update(2, 11), update(1, 12, by="phone")])
    assert service.told == [("doc:1", 12, "phone"), ("doc:2", 11, None)]
    assert service.keys == ["Bearer publish-key"]
    assert (notifier.published, notifier.problem) == (2, None)
    assert await _answer(notifier.on_token(SHARD, Position(1, 12))) is None


async def _answer(awaitable: Any) -> Any:
    return await awaitable if asyncio.iscoroutine(awaitable) else awaitable


async def test_it_goes_on_until_the_service_takes_it(service: Service, made: Any) -> None:
    service.answers["publish"] = [(503, error("feed-full", transient=True))] * 3 + [(401, error("publish-key-refused"))] * 2
    notifier = made()
    await notifier.on_updates(SHARD, [update(1, 10)])
    assert service.told == [("doc:1", 10, None)]
    assert notifier.problem is None
    assert len(service.keys) == 6


async def test_while_it_waits_it_says_why_and_nothing_is_done_with(service: Service, made: Any) -> None:
    service.answers["publish"] = [(401, error("publish-key-refused"))] * 1_000
    notifier = made()
    task = asyncio.create_task(notifier.on_updates(SHARD, [update(1, 10)]))
    while notifier.problem is None:
        await asyncio.sleep(0.01)
    assert notifier.problem.code == "publish-key-refused"
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_object_that_is_refused_for_itself_does_not_hold_up_the_others(service: Service, made: Any) -> None:
    service.answers["publish"] = [(200, {"results": [{"ok": False, **error("invalid-name")}, {"ok": True}]})]
    notifier = made()
    await notifier.on_updates(SHARD, [update(1, 10), update(2, 10)])
    assert (notifier.published, notifier.refused) == (1, 1)


async def test_a_truncated_table_is_invalidated_and_a_limit_waited_for(service: Service, made: Any) -> None:
    service.answers["invalidate"] = [(429, error("rate-limited", transient=True)), (502, "a proxy's word")]
    notifier = made(objects=["doc:{id}", "\x01{id}"])
    await notifier.on_updates(SHARD, [update(1, 10, operation=Operation.TRUNCATE)])
    assert sorted(map(str, service.told)) == sorted([str(("invalidate", {"prefix": "base64:AQ"})), str(("invalidate", {"prefix": "doc:"}))])
    assert notifier.invalidated == 2


async def test_a_loss_makes_everything_unknown_that_mappings_can_name(service: Service, made: Any) -> None:
    notifier = made(objects=["doc:{id}", "{id}"])
    await notifier.on_data_loss(SHARD, Position(1, 5), Position(1, 90))
    assert service.told == [("invalidate", {})]
    assert notifier.losses == 1


async def test_the_losses_of_all_shards_are_one_for_the_service(service: Service, made: Any) -> None:
    notifier = made(gather_s=0.1)
    shards = [Shard("shop", number) for number in range(64)]
    await asyncio.gather(*(notifier.on_data_loss(shard, Position(1, 5), Position(1, 90)) for shard in shards))
    assert service.told == [("invalidate", {"prefix": "doc:"})]
    assert notifier.losses == 64


async def test_a_loss_that_comes_while_another_is_told_is_told_by_itself_and_none_is_left_out(service: Service, made: Any) -> None:
    service.answers["invalidate"] = [(503, error("feed-full", transient=True))] * 1_000
    notifier = made()
    shards = [Shard("shop", number) for number in range(3)]
    waiting = [asyncio.create_task(notifier.on_data_loss(shard, Position(1, 5), Position(1, 90))) for shard in shards[:2]]
    async with asyncio.timeout(5.0):
        while notifier.problem is None:
            await asyncio.sleep(0.01)
        waiting.append(asyncio.create_task(notifier.on_data_loss(shards[2], Position(1, 5), Position(1, 90))))
        await asyncio.sleep(0.05)
        waiting.pop(0).cancel()  # its connection is gone: another one tells it then
        assert not any(task.done() for task in waiting)
        service.answers.clear()
        await asyncio.gather(*waiting)
    assert 1 <= len(service.told) <= 2
    assert set(map(str, service.told)) == {str(("invalidate", {"prefix": "doc:"}))}


async def test_the_first_history_resets_nothing_and_is_remembered(service: Service, made: Any) -> None:
    kept = Kept()
    await made(kept).on_updates(SHARD, [update(1, 10, history=4)])
    assert service.told == [("doc:1", 10, None)]
    assert kept.histories == {"shop": 4}


async def test_who_comes_late_learns_from_the_datamarker_what_history_others_published(service: Service, made: Any) -> None:
    """On another host, after a promotion that both the publisher and the notifier of before did not survive."""
    kept = Kept()
    notifier = made(kept)
    notifier.began_after = {SHARD: Position(1, 99)}.get
    await notifier.on_updates(SHARD, [update(1, 50, history=2)])
    assert service.told == [("reset", {}), ("doc:1", 50, None)]
    assert kept.histories == {"shop": 2}


async def test_a_flow_that_begins_with_the_log_tells_nothing_of_its_history(service: Service, made: Any) -> None:
    notifier = made(Kept())
    notifier.began_after = {SHARD: BEGINNING}.get
    await notifier.on_updates(SHARD, [update(1, 50, history=2)])
    assert service.told == [("doc:1", 50, None)]


@pytest.mark.parametrize("histories", [(1, 2), (2, 1)])
async def test_of_two_histories_at_the_first_start_the_later_one_counts(service: Service, made: Any, histories: tuple[int, int]) -> None:
    kept = Kept()
    notifier = made(kept)
    shards = [notifier.on_updates(Shard("shop", history), [update(history, 90 - history, history=history)]) for history in histories]
    await asyncio.gather(*shards)
    assert kept.histories == {"shop": 2}
    if histories == (1, 2):
        assert service.told == [("doc:1", 89, None), ("reset", {}), ("doc:2", 88, None)]
    else:
        assert sorted(map(str, service.told)) == sorted(map(str, [("doc:2", 88, None), ("invalidate", {"object": "doc:1"})]))


async def test_a_new_history_resets_before_anything_of_it_is_published(service: Service, made: Any) -> None:
    kept = Kept({"shop": 1, "other": 7})
    service.answers["reset"] = [(503, error("unavailable", transient=True))]
    notifier = made(kept)
    await notifier.on_updates(SHARD, [update(1, 90), update(1, 50, history=2), update(2, 51, history=2)])
    assert service.told == [("doc:1", 90, None), ("reset", {}), ("doc:1", 50, None), ("doc:2", 51, None)]
    assert service.keys[2] == "Bearer admin-key"
    assert kept.histories == {"shop": 2, "other": 7}
    await notifier.on_updates(SHARD, [update(3, 91, history=1)])  # late, from the old primary
    assert service.told[-1] == ("invalidate", {"object": "doc:3"})
    assert notifier.resets == 1


async def test_after_a_restart_a_new_history_is_noticed(service: Service, made: Any, tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "of" / "capture.json")
    await made(file).on_updates(SHARD, [update(1, 90)])
    await made(file).on_updates(SHARD, [update(1, 50, history=2)])
    await made(file).on_updates(SHARD, [update(1, 52, history=2)])
    assert service.told == [("doc:1", 90, None), ("reset", {}), ("doc:1", 50, None), ("doc:1", 52, None)]


async def test_a_reset_waits_for_what_is_under_way_in_other_shards(service: Service, made: Any) -> None:
    service.held = asyncio.Event()
    notifier = made(Kept({"shop": 1}))
    old = asyncio.create_task(notifier.on_updates(Shard("shop", 1), [update(1, 90)]))
    while not service.waiting:
        await asyncio.sleep(0.01)
    others = [asyncio.create_task(notifier.on_updates(Shard("shop", shard), [update(shard, 50, history=2)])) for shard in (2, 3)]
    late = asyncio.create_task(notifier.on_updates(Shard("shop", 1), [update(9, 91)]))
    await asyncio.sleep(0.1)
    assert service.told == []
    service.held.set()
    await asyncio.gather(old, late, *others)
    # Of the old history nothing is published after the reset, and there is one reset for all.
    reset = service.told.index(("reset", {}))
    assert service.told.count(("reset", {})) == 1
    assert ("doc:1", 90, None) in service.told[:reset]
    assert {("doc:2", 50, None), ("doc:3", 50, None)} <= set(_hashable(service.told[reset:]))
    assert ("doc:9", 91, None) not in service.told[reset:]


def _hashable(told: list[Any]) -> list[Any]:
    return [one for one in told if not isinstance(one[1], dict)]


async def test_without_the_operators_key_a_new_history_waits(service: Service, made: Any) -> None:
    notifier = made(Kept({"shop": 1}), admin_key=None)
    task = asyncio.create_task(notifier.on_updates(SHARD, [update(1, 50, history=2)]))
    while notifier.problem is None:
        await asyncio.sleep(0.01)
    assert isinstance(notifier.problem, AdministrationRefused)
    assert service.told == []
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_so_many_callbacks_publish_at_a_time(service: Service, made: Any) -> None:
    service.held = asyncio.Event()
    notifier = made(batches_max=2)
    tasks = [asyncio.create_task(notifier.on_updates(Shard("shop", shard), [update(shard, 10)])) for shard in range(6)]
    while service.waiting < 2:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert service.waiting == 2
    service.held.set()
    await asyncio.gather(*tasks)
    assert len(service.told) == 6


async def test_a_closed_publisher_ends_it(service: Service, made: Any) -> None:
    publisher = Publisher(service.url, application="demo")
    await publisher.close()
    notifier = made()
    notifier._publisher = publisher
    with pytest.raises(ClientStopped):
        await notifier.on_updates(SHARD, [update(1, 10)])


async def test_orders_name_what_is_wrong(service: Service) -> None:
    orders = Orders(service.url, application="demo")
    service.answers["invalidate"] = [(400, error("invalid-name")), (429, error("rate-limited", transient=True)), (500, "oh")]
    for kind in (InvalidName, RateLimited, ServiceUnreachable):
        with pytest.raises(kind):
            await orders.invalidate(b"x", prefix=False)
    await orders.close()
    nowhere = Orders("http://127.0.0.1:1", application="demo")
    with pytest.raises(ServiceUnreachable, match="cannot be reached"):
        await nowhere.invalidate(b"x", prefix=True)
    await nowhere.close()


@pytest.mark.parametrize("text", ["{", "[1]", '{"shop": "1"}', '{"shop": true}'])
def test_a_damaged_file_of_histories_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(InvalidSetting, match="published last"):
        HistoryFile(tmp_path / "file").read()


def test_the_file_of_histories_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "new" / "file")
    assert file.read() == {}
    file.write({"shop": 1})
    file.write({"shop": 2, "other": 1})
    assert file.read() == {"shop": 2, "other": 1}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]
