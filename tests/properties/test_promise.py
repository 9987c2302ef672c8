"""The promise, under every interleaving that Hypothesis can think of: what a registered client is told, and that nothing waits for ever.

Rules do what applications, channels, processes and stores do, well and badly. Then the world heals, and every registered client must have
learned the latest version, or "unknown" after it (Thialfi 5, reliable delivery property). What may never happen is checked all the time:
see `application.py`. `ROSKVA_TEST_PROPERTIES=long` runs far more; what it finds is printed with the blob that repeats it.
"""

from __future__ import annotations

import os
import sys

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.properties.store import Fault
from tests.properties.world import World

NAMES = (b"a", b"b", b"c")
CLIENTS = 2
LONG = os.environ.get("ROSKVA_TEST_PROPERTIES") == "long"

names = st.sampled_from(NAMES)
clients = st.integers(0, CLIENTS - 1)
picks = st.integers(0, 11)
faults = st.lists(st.sampled_from(Fault), min_size=1, max_size=4)
no_faults: list[Fault] = []
few_faults = st.just(no_faults) | faults
fates = st.lists(st.tuples(picks, st.sampled_from(("deliver", "deliver", "repeat", "drop"))), min_size=1, max_size=8)
dead = st.sampled_from(("", "pipeline", "both"))
wishes = st.sampled_from(("register", "fetch, then register", "unregister"))


class Promise(RuleBasedStateMachine):
    """With the model's Registrar: small, plain, each of its steps over at once."""

    service = False

    @initialize(
        seed=st.integers(0, 1 << 16),
        operations_max=st.sampled_from((1_000, 2)),
        stating=st.tuples(*[st.booleans()] * CLIENTS),
        registered=st.lists(st.tuples(clients, names), max_size=4),
    )
    def begin(self, seed: int, operations_max: int, stating: tuple[bool, ...], registered: list[tuple[int, bytes]]) -> None:
        self.world = World(seed=seed, operations_max=operations_max, service=self.service)
        for states_versions in stating:
            self.world.add(states_versions=states_versions)
        for client, name in registered:
            self.world.applications[client].register(name)
        self.world.pump()

    # Applications and backends.

    @rule(
        updates=st.lists(st.tuples(names, st.none() | clients, st.integers(1, 3)), min_size=1, max_size=3),
        to_come=few_faults,
    )
    def publish(self, updates: list[tuple[bytes, int | None, int]], to_come: list[Fault]) -> None:
        """The Registrar may fail at what these bring."""
        self.world.registrar_steps.faults.extend(to_come)
        for name, source, step in updates:
            version = self.world.latest(name) + step if name in self.world.published else step
            self.world.publish(name, version, None if source is None else self.world.applications[source])
        self.world.pump()

    @precondition(lambda self: self.world.published)
    @rule(name=names, pick=picks)
    def publisher_retries(self, name: bytes, pick: int) -> None:
        """An old record once more: the publisher did not hear that it was accepted."""
        self.world.publish_again(name, pick)
        self.world.pump()

    @rule(
        client=clients,
        wishes=st.lists(st.tuples(names, wishes), min_size=1, max_size=4),
        at_once=st.booleans(),
        to_come=few_faults,
    )
    def wish(self, client: int, wishes: list[tuple[bytes, str]], at_once: bool, to_come: list[Fault]) -> None:
        """Registrations and unregistrations, each before the one before it has arrived, or after. The Registrar may fail at them."""
        self.world.registrar_steps.faults.extend(to_come)
        application = self.world.applications[client]
        for name, what in wishes:
            if what == "unregister":
                application.unregister(name)
            else:
                application.register(name, fetch=what == "fetch, then register")
            if not at_once:
                self.world.pump()
        self.world.pump()

    @rule(
        client=clients,
        name=names,
        updates=st.integers(1, 2),
        again=st.booleans(),
        order=st.lists(picks, min_size=4, max_size=12),
        dead=dead,
    )
    def race(self, client: int, name: bytes, updates: int, again: bool, order: list[int], dead: str) -> None:
        """An update and a registration of one object meet in the Matcher, step by step in any order."""
        runs, self.world.pipeline_runs = self.world.pipeline_runs, False
        application = self.world.applications[client]
        if again:
            application.unregister(name)
        application.register(name)
        self.world.pump()
        self.publish([(name, None, 1)] * updates, [])
        self.world.pipeline.begin(apart=True)
        self.tasks_move(order)
        self._die(dead)
        self.world.pipeline_runs = runs

    @rule(client=clients, prompt=st.booleans())
    def patience(self, client: int, prompt: bool) -> None:
        self.world.applications[client].prompt = prompt

    @rule(client=clients, pick=picks, back=st.booleans())
    def deal_with(self, client: int, pick: int, back: bool) -> None:
        application = self.world.applications[client]
        (application.give_back if back else application.deal_with)(pick)
        self.world.pump()

    # Time and channels.

    @rule(duration_s=st.sampled_from((0.01, 0.06, 1.1, 6.0, 20.0, 70.0, 250.0)))
    def time_passes(self, duration_s: float) -> None:
        self.world.run(duration_s)

    @rule(flowing=st.booleans(), lossy=st.booleans())
    def flow(self, flowing: bool, lossy: bool) -> None:
        self.world.flowing, self.world.lossy = flowing, lossy
        self.world.pump()

    @precondition(lambda self: self.world.in_flight)
    @rule(chosen=fates)
    def channel(self, chosen: list[tuple[int, str]]) -> None:
        """Messages in flight arrive in any order, twice, or never."""
        for pick, what in chosen:
            if self.world.in_flight:
                packet = self.world.in_flight[pick % len(self.world.in_flight)]
                if what != "repeat":
                    self.world.in_flight.remove(packet)
                if what != "drop":
                    self.world.deliver(packet)
        self.world.pump()

    @rule(client=clients, name=names, fates=fates, later=fates)
    def crossing(self, client: int, name: bytes, fates: list[tuple[int, str]], later: list[tuple[int, str]]) -> None:
        """A slow application acknowledges one version while the next is on its way."""
        application = self.world.applications[client]
        application.prompt = False
        self.publish([(name, None, 1)], [])
        self.world.flowing = False
        self.publish([(name, None, 1)], [])
        self.world.run(0.06)
        self.channel(fates)
        application.deal_with()
        self.channel(later)

    @rule(client=clients, noticed=st.booleans())
    def disconnect(self, client: int, noticed: bool) -> None:
        self.world.disconnect(self.world.applications[client], noticed)

    @rule(reconnecting=st.booleans())
    def reconnecting(self, reconnecting: bool) -> None:
        self.world.reconnecting = reconnecting

    # Processes and stores.

    @rule(client=clients, keep_state=st.booleans())
    def client_restarts(self, client: int, keep_state: bool) -> None:
        self.world.restart(self.world.applications[client], keep_state)
        self.world.pump()

    @rule(links_break=st.booleans())
    def registrar_restarts(self, links_break: bool) -> None:
        self.world.restart_registrar(links_break)
        self.world.pump()

    @rule(links_break=st.booleans())
    def registrar_stops(self, links_break: bool) -> None:
        self.world.stop_registrar(links_break)

    @rule()
    def memory_pressure(self) -> None:
        if self.world.registrar is not None:
            self.world.registrar.drop_caches()

    @rule(reachable=st.booleans())
    def registrar_hangs(self, reachable: bool) -> None:
        """It lives and keeps its sessions, but the pipeline does not reach it, and writes in its stead."""
        self.world.reachable = reachable

    @rule()
    def registrar_table_lost(self) -> None:
        self.world.lose_registrar_table()
        self.world.pump()

    @rule(registrar=st.booleans(), to_come=faults)
    def stores_fail(self, registrar: bool, to_come: list[Fault]) -> None:
        steps = self.world.registrar_steps if registrar else self.world.pipeline_steps
        steps.faults.extend(to_come)

    # The pipeline.

    @rule(runs=st.booleans())
    def pipeline(self, runs: bool) -> None:
        self.world.pipeline_runs = runs
        self.world.pump()

    @rule(
        news=st.lists(names, max_size=2),
        split=st.integers(0, 3),
        apart=st.booleans(),
        order=st.lists(picks, max_size=8),
        dead=dead,
    )
    def batch(self, news: list[bytes], split: int, apart: bool, order: list[int], dead: str) -> None:
        """A batch takes all records, or leaves some for the next; it gets somewhere, and may die there."""
        self.world.pipeline_runs = False
        for name in news:
            self.publish([(name, None, 1)], [])
        committed, ends = self.world.feed.committed, self.world.feed.ends()
        self.world.pipeline.begin({topic: max(committed[topic], end - split) for topic, end in ends.items()}, apart)
        self.tasks_move(order)
        self._die(dead)

    def _die(self, dead: str) -> None:
        if dead:
            self.world.pipeline.die()
        if dead == "both":
            self.world.restart_registrar(links_break=True)

    @precondition(lambda self: self.world.pipeline.tasks or self.world.pipeline.orphans)
    @rule(chosen=st.lists(picks, min_size=1, max_size=6))
    def tasks_move(self, chosen: list[int]) -> None:
        for pick in chosen:
            tasks = [*self.world.pipeline.tasks, *self.world.pipeline.orphans]
            if tasks:
                self.world.step(tasks[pick % len(tasks)])
        self.world.pump()

    @rule(orphans=st.booleans(), checkpoint_lost=st.booleans())
    def pipeline_dies(self, orphans: bool, checkpoint_lost: bool) -> None:
        self.world.pipeline.die(orphans, checkpoint_lost)

    # The promise.

    @rule()
    def heal(self) -> None:
        self.world.heal()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                if sys.exc_info()[0] is None:
                    self.world.heal()
            finally:
                self.world.close()


class PromiseOfService(Promise):
    """With the Registrar that gateways run: the same rules, and its reads and writes take time and overlap."""

    service = True

    @rule(slow=st.booleans())
    def disk(self, slow: bool) -> None:
        self.world.slow = slow


def profile(examples: int) -> settings:
    return settings(
        max_examples=100 * examples if LONG else examples,
        stateful_step_count=60 if LONG else 40,
        deadline=None,
        print_blob=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


TestPromise = Promise.TestCase
TestPromise.settings = profile(200)
TestPromiseOfService = PromiseOfService.TestCase
TestPromiseOfService.settings = profile(100)
