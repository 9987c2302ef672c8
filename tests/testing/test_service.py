"""roskva.testing: what users' tests may rely on, and that a test which waits for ever ends."""

from __future__ import annotations

import asyncio
import doctest
import math
import re
import time
from pathlib import Path
from typing import Any

import pytest

from roskva import Client, LiveCache, Notification, Publisher
from roskva.errors import InvalidName, InvalidSetting, ServiceUnreachable
from roskva.testing import NotAwaited, Service, Stuck, service
from roskva.testing.wires import Wire

DOCUMENT = Path(__file__).parents[2] / "docs" / "testing.md"


def started(world: Service, application: str = "shop", device: str | None = None, **options: object) -> Client:
    client = world.client(application, device, **options)
    world.run(client.start())
    return client


def registered(world: Service, *names: str, **options: object) -> Client:
    client = started(world, **options)  # type: ignore[arg-type]
    for name in names:
        world.run(client.register(name))
    world.run(client.synced())
    return client


class Told:
    """What a client told its application."""

    def __init__(self) -> None:
        self.versions: list[int | None] = []

    def __call__(self, notification: Notification) -> None:
        self.versions.append(notification.version)


class TestWithoutTrouble:
    def test_a_registration_yields_unknown_then_what_is_published(self) -> None:
        told = Told()
        with Service() as world:
            client = registered(world, "doc", on_notify=told)
            world.publish("shop", "doc", 7)
            world.advance(0)
            assert told.versions == [None, 7]
            assert world.version("shop", "doc") == 7
            assert world.registered("shop", "doc") == [client.device]
            world.advance(1)
            assert client.in_sync

    def test_no_time_passes_by_itself(self) -> None:
        with Service() as world:
            registered(world, "doc")
            assert world.now_s == 0.0

    def test_the_source_of_a_change_is_left_out(self) -> None:
        mine, theirs = Told(), Told()
        with Service() as world:
            registered(world, "doc", device="mine", on_notify=mine)
            registered(world, "doc", device="theirs", on_notify=theirs)
            world.publish("shop", "doc", 7, source="mine")
            world.advance(0)
        assert mine.versions == [None]
        assert theirs.versions == [None, 7]

    def test_a_publisher_for_code_that_takes_one(self) -> None:
        async def backend(publisher: Publisher) -> None:
            async with publisher:
                await publisher.publish("doc", 7)
                assert await publisher.publish_many([("a", 1), ("b", 2, "phone")]) == [None, None]

        with Service() as world:
            world.run(backend(world.publisher("shop")))
            world.advance(0)
            assert [world.version("shop", name) for name in ("doc", "a", "b", "c")] == [7, 1, 2, None]

    def test_applications_are_apart(self) -> None:
        with Service() as world:
            registered(world, "doc")
            assert world.registered("other", "doc") == []

    def test_a_state_file_is_kept_between_runs(self, tmp_path: Path) -> None:
        told = Told()
        with Service() as world:
            first = registered(world, "doc", state=tmp_path / "state", on_notify=told)
            world.run(first.close())
            second = started(world, device=first.device, state=tmp_path / "state", on_notify=told)
            world.run(second.register("doc"))
            world.run(second.synced(), within_s=5)
            assert world.registered("shop", "doc") == [first.device]
        assert told.versions == [None]  # the second run is told nothing that the first has acknowledged

    def test_a_client_that_signed_out_is_gone(self) -> None:
        with Service() as world:
            client = registered(world, "doc")
            world.run(client.forget(), within_s=5)
            assert world.registered("shop", "doc") == []


class TestTrouble:
    def test_what_is_lost_comes_when_the_clock_is_moved(self) -> None:
        told = Told()
        with Service() as world:
            registered(world, "doc", on_notify=told)
            world.lose(next=1, to="client")
            world.publish("shop", "doc", 7)
            world.advance(0.5)
            assert told.versions == [None]
            world.advance(1)
            assert told.versions == [None, 7]

    def test_a_lost_acknowledgement_brings_the_notification_again_but_not_to_the_application(self) -> None:
        told = Told()
        with Service() as world:
            client = registered(world, "doc", on_notify=told)
            world.lose(next=1, to="service")
            world.publish("shop", "doc", 7)
            world.advance(0.9)
            before = client.in_sync
            world.advance(5)
            assert (before, client.in_sync) == (False, True)
        assert told.versions == [None, 7]

    @pytest.mark.parametrize("seed", range(5))
    def test_with_much_loss_all_arrives_in_the_end(self, seed: int) -> None:
        told = Told()
        with Service(loss=0.5, seed=seed) as world:
            client = started(world, on_notify=told)
            world.run(client.register("doc"))
            for version in range(1, 6):
                world.publish("shop", "doc", version)
                world.advance(20)
            world.loss = 0.0
            world.advance(200)
            assert client.in_sync
        assert told.versions[-1] == 5

    def test_the_same_seed_is_the_same_test(self) -> None:
        def when(seed: int) -> float:
            with Service(loss=0.6, seed=seed) as world:
                client = started(world)
                world.run(client.register("doc"), within_s=600)
                world.run(client.synced(), within_s=3600)
                return world.now_s

        assert when(3) == when(3)
        assert len({when(seed) for seed in range(5)}) > 1

    def test_a_disconnected_client_learns_the_latest_when_it_is_back(self) -> None:
        told = Told()
        with Service() as world:
            client = registered(world, "doc", on_notify=told)
            world.disconnect(client)
            world.advance(0)
            assert not client.connected
            for version in (7, 8, 9):
                world.publish("shop", "doc", version)
            world.advance(30)
            assert told.versions == [None]
            before = client.in_sync
            world.reconnect(client)
            world.advance(60)
            assert (before, client.in_sync) == (False, True)
        assert told.versions == [None, 9]

    def test_a_restart_loses_nothing(self) -> None:
        told = Told()
        with Service() as world:
            client = registered(world, "doc", on_notify=told)
            world.publish("shop", "doc", 7)
            world.restart()
            world.advance(5)
            assert client.in_sync
        assert told.versions == [None, 7]

    def test_a_stopped_service_is_unreachable(self) -> None:
        with Service() as world:
            world.stop()
            client = started(world)
            world.run(client.register("doc"))
            with pytest.raises(ServiceUnreachable, match="stopped"):
                world.run(client.synced(timeout=3), within_s=5)
            with pytest.raises(ServiceUnreachable):
                world.publish("shop", "doc", 1)
            world.start()
            world.run(client.synced(), within_s=60)

    def test_all_is_lost_and_clients_are_told_unknown(self) -> None:
        told = Told()
        with Service() as world:
            client = registered(world, "doc", on_notify=told)
            world.publish("shop", "doc", 7)
            world.advance(1)
            world.drop_everything()
            assert world.version("shop", "doc") is None
            world.advance(5)
            assert client.in_sync
            assert world.registered("shop", "doc") == [client.device]
        assert told.versions == [None, 7, None]

    def test_an_invalidation_is_unknown_and_later_versions_come_as_before(self) -> None:
        told, other = Told(), Told()
        with Service() as world:
            registered(world, "doc", on_notify=told)
            registered(world, "other", on_notify=other)
            world.publish("shop", "doc", 7)
            world.advance(1)
            world.invalidate("shop", "doc")
            world.advance(1)
            world.publish("shop", "doc", 8)
            world.advance(1)
        assert told.versions == [None, 7, None, 8]
        assert other.versions == [None]

    def test_after_a_reset_lower_versions_count(self) -> None:
        told, other = Told(), Told()
        with Service() as world:
            client = registered(world, "doc", on_notify=told)
            registered(world, "doc", application="other", on_notify=other)
            world.publish("shop", "doc", 700)
            world.advance(1)
            world.reset("shop")
            world.advance(5)
            assert world.version("shop", "doc") is None
            world.publish("shop", "doc", 1)
            world.advance(1)
            assert client.in_sync
        assert told.versions == [None, 700, None, 1]
        assert other.versions == [None]

    def test_a_collected_client_starts_anew(self) -> None:
        told = Told()
        with Service() as world:
            client = registered(world, "doc", on_notify=told)
            other = registered(world, "doc")
            world.collect(client)
            assert world.registered("shop", "doc") == [other.device]
            world.publish("shop", "doc", 7)
            world.advance(5)
            assert client.in_sync
        assert told.versions == [None, 7]


class TestTheClock:
    def test_who_waits_for_ever_is_told_so(self) -> None:
        with Service() as world:
            with pytest.raises(Stuck, match="nothing is due at all"):
                world.run(asyncio.Event().wait())
            with pytest.raises(Stuck, match=r"due in 3\.000 s"):
                world.run(asyncio.sleep(3))
            world.run(asyncio.sleep(3), within_s=3)
            assert world.now_s == 3.0

    def test_what_goes_round_in_circles_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("roskva.testing.loop._TURNS_MAX", 1_000)

        async def circle() -> None:
            while True:
                await asyncio.sleep(0)

        with Service() as world, pytest.raises(Stuck, match="circles"):
            world.run(circle())

    def test_inside_a_coroutine_it_is_awaited(self) -> None:
        async def story() -> list[float]:
            seen = []
            asyncio.get_running_loop().call_later(4, lambda: seen.append(world.now_s))
            await world.advance(10)
            return [*seen, world.now_s]

        with Service() as world:
            assert world.run(story()) == [4.0, 10.0]

    def test_without_await_inside_a_coroutine_it_is_an_error_and_nothing_is_left_of_it(self) -> None:
        async def story() -> int:
            world.advance(10)
            return 7

        with Service() as world:
            with pytest.raises(NotAwaited, match="advance must be awaited here"):
                world.run(story())
            with pytest.raises(Stuck):
                world.run(asyncio.sleep(5))
            assert world.now_s == 0.0

    def test_what_failed_says_so_itself_though_an_advance_was_not_awaited(self) -> None:
        async def story() -> None:
            world.advance(10)
            raise AssertionError("of the test")

        with Service() as world:
            with pytest.raises(AssertionError, match="of the test"):
                world.run(story())
            world.run(asyncio.sleep(0))
            assert world.now_s == 0.0

    def test_an_advance_that_ended_before_the_story_did_is_no_error(self) -> None:
        async def story() -> float:
            await asyncio.wait([asyncio.ensure_future(world.advance(10))])
            return world.now_s

        with Service() as world:
            assert world.run(story()) == 10.0

    def test_no_other_clock_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of a test that a debugger held for an hour, every client says what it would have said."""

        def said(held_s: float) -> list[object]:
            with Service() as world:
                registered(world, "doc", on_notify=Told())
                messages: list[object] = []
                heard = world.heard

                def noted(wire: Wire, message: object) -> None:
                    messages.append(message)
                    heard(wire, message)

                monkeypatch.setattr(world, "heard", noted)
                wall_s = time.time()
                with monkeypatch.context() as clock:
                    clock.setattr(time, "time", lambda: wall_s + held_s)
                    world.advance(6)
                return messages

        assert len(said(3_600.0)) == len(said(0.0))

    def test_a_closed_client_leaves_nothing_due(self) -> None:
        with Service() as world:
            world.run(registered(world, "doc").close())
            with pytest.raises(Stuck, match="nothing is due at all"):
                world.run(asyncio.Event().wait())

    def test_a_client_looks_at_nothing_by_itself(self) -> None:
        """What is due next is due to the protocol."""
        with Service() as world:
            registered(world, "doc", on_notify=Told())
            world.advance(1)
            with pytest.raises(Stuck, match=r"the next timer is due in \d{2,}\."):
                world.run(asyncio.Event().wait())

    def test_it_does_not_go_back(self) -> None:
        with Service() as world, pytest.raises(ValueError, match="back"):
            world.advance(-1)

    def test_hours_of_silence_keep_a_client_in_sync(self) -> None:
        with Service() as world:
            client = registered(world, "doc", on_notify=Told())
            world.advance(3 * 3600)
            assert client.in_sync

    def test_functions_for_threads_run_at_once(self) -> None:
        with Service() as world:
            assert world.run(asyncio.to_thread(lambda: 7)) == 7


class TestMistakes:
    def test_a_client_has_no_address(self) -> None:
        with Service() as world, pytest.raises(InvalidSetting, match="leave url"):
            world.client("shop", channel="websocket")

    def test_a_client_of_another_service(self) -> None:
        with Service() as world, Service() as other, pytest.raises(InvalidSetting, match="not one of this"):
            world.disconnect(other.client("shop"))

    def test_names_are_checked(self) -> None:
        with Service() as world, pytest.raises(InvalidName):
            world.publish("shop", "x" * 129, 1)

    @pytest.mark.parametrize("next_", [-1, 1.5, "1", True, None])
    def test_how_many_are_lost_is_a_number(self, next_: Any) -> None:
        with Service() as world, pytest.raises(InvalidSetting, match="an integer from 0"):
            world.lose(next_)

    @pytest.mark.parametrize("to", ["server", "", "any", ["client"], 7])
    def test_whose_messages_are_lost_is_said_in_one_of_two_words(self, to: Any) -> None:
        with Service() as world, pytest.raises(InvalidSetting, match='"client" or "service"'):
            world.lose(1, to=to)

    @pytest.mark.parametrize("loss", [30, "0.3", -0.1, 1.01, math.nan, True, None])
    def test_loss_is_a_part(self, loss: Any) -> None:
        with pytest.raises(InvalidSetting, match=r"from 0\.0 to 1\.0"):
            Service(loss=loss)
        with Service() as world:
            with pytest.raises(InvalidSetting, match=r"from 0\.0 to 1\.0"):
                world.loss = loss
            assert world.loss == 0.0

    def test_what_may_be_lost(self) -> None:
        with Service(loss=1) as world:
            world.loss = 0
            world.lose(0)
            world.lose(next=2, to="service")

    def test_it_is_used_with_with_and_once(self) -> None:
        world = Service()
        with pytest.raises(RuntimeError, match="with"):
            world.advance(1)
        with world:
            pass
        with pytest.raises(RuntimeError, match="used before"):
            world.__enter__()


class TestTheEnd:
    """A callback that does not let itself be ended: its client's close never returns."""

    @staticmethod
    async def _stubborn(notification: Notification) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    def _test(self, others: list[Client], says: str = "") -> None:
        with Service() as world:
            registered(world, "doc", on_notify=self._stubborn)
            others.append(registered(world, "doc"))
            if says:
                raise AssertionError(says)

    def test_a_client_that_cannot_be_closed_is_told_and_the_others_are_closed(self) -> None:
        others: list[Client] = []
        with pytest.raises(Stuck, match="still waits"):
            self._test(others)
        assert [(other._closed, other.connected) for other in others] == [(True, False)]

    def test_it_does_not_hide_why_the_test_failed(self) -> None:
        others: list[Client] = []
        with pytest.raises(AssertionError, match="of the test"):
            self._test(others, "of the test")
        assert [other._closed for other in others] == [True]


def test_a_cache_serves_what_was_fetched_after_the_last_notification() -> None:
    fetches: list[str] = []

    async def fetch(name: str) -> str:
        fetches.append(name)
        await asyncio.sleep(0.1)
        return f"{name} as of {len(fetches)}"

    async def story(client: Client) -> None:
        async with client, LiveCache(client, fetch) as cache:
            answers = await asyncio.gather(*(cache.get("doc") for _ in range(5)))
            assert set(answers) == {"doc as of 1"}
            await world.advance(2)
            assert cache.state("doc").state == "fresh"
            before = len(fetches)
            world.publish("shop", "doc", 2)
            await world.advance(2)
            assert len(fetches) == before + 1
            assert await cache.get("doc") == f"doc as of {before + 1}"

    with Service() as world:
        world.run(story(world.client("shop")), within_s=1)


def test_the_examples_of_the_documentation_run() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(programs) == 3
    ran = 0
    for program in programs:
        names: dict[str, object] = {}
        exec(compile(program, "docs/testing.md", "exec"), names)
        for name, value in names.items():
            if name.startswith("test_") and callable(value):
                value()
                ran += 1
    assert ran == 4
    assert doctest.testmod(service).failed == 0


def test_the_documentation_names_all_there_is() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    inside = {"accept", "dice", "heard", "plug_in", "running", "unplug"}
    for name in vars(Service):
        if not name.startswith("_") and name not in inside:
            assert re.search(rf"`{name}\b|, `{name}|`[^`]*\b{name}\b", text), name
