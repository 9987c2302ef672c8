"""The commands of transcripts, each a pattern and what it does on the stage.

client NAME start | stop | crash | connect | disconnect [unnoticed] | lose state
client NAME register OBJECT [holding VERSION] [every N ms] | unregister OBJECT
client NAME wish OBJECT | forget OBJECT                    while it does not run
client NAME busy | ack [OBJECT] | give back | prompt       busy: what it is shown waits for `ack`
client NAME forge ack OBJECT@VERSION of SEQNO              what no client of ours would say
clone NAME                                                 a second process with a copy of the state, called NAME'
network hold | flow | show                                 held: messages wait for the next three
deliver [N] | drop N | duplicate N                         N: the place in `network show`
publish OBJECT VERSION [by NAME] | publish again
matcher TASK take updates | registrations | everything [of OBJECT]
matcher TASK write | read | match | tell | tell deposed | die
matcher run                                                batches with all their steps, until the feed is empty
registrar crash | start | restart | unreachable | reachable | depose | limit N
registrar dies after N writes                              marks and appends count, too
row NAME | lose row NAME | copy row NAME | restore row NAME | unavailable row NAME | available row NAME
lose registrar table | lose feed
pass N s
check                                                      is everything as the promise says?
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from roskva.feed.interface import REGISTRATIONS, UPDATES
from roskva.matcher.cells import object_row
from roskva.model import name_from_text, object_key
from roskva.protocol.messages import Ack
from roskva.table.interface import RowKey
from tests.properties.registrar import RegistrarShell
from tests.properties.store import PARTITIONS, Fault
from tests.transcripts.stage import Player, Stage, name_of_player
from tests.transcripts.words import cell_text, seqno_from_text

Command = Callable[..., None]
COMMANDS: Final[dict[str, Command]] = {}
ALL_IS_SETTLED: Final = "all is settled"


def obey(stage: Stage, line: str) -> None:
    quietly = line.startswith("quietly ")
    line = line.removeprefix("quietly ")
    for pattern, deed in COMMANDS.items():
        words = re.fullmatch(pattern, line)
        if words is not None:
            stage.quiet = quietly
            deed(stage, **words.groupdict())
            stage.run(0)
            stage.quiet = False
            return
    raise ValueError(f"a transcript cannot say: {line}")


def command(pattern: str) -> Callable[[Command], Command]:
    def keep(deed: Command) -> Command:
        COMMANDS[pattern] = deed
        return deed

    return keep


# Clients.


@command(r"client (?P<name>\S+) start")
def start(stage: Stage, name: str) -> None:
    player = stage.players.setdefault(name, Player(stage, name))
    player.run_anew()
    stage.applications.append(player)
    player.start()
    stage.connect(player)


@command(r"clone (?P<name>\S+)")
def clone(stage: Stage, name: str) -> None:
    copy = stage.players[f"{name}'"] = Player(stage, f"{name}'")
    copy.state, copy.wishes = stage.players[name].state, set(stage.players[name].wishes)
    start(stage, copy.name)


@command(r"client (?P<name>\S+) (?P<how>stop|crash)")
def end(stage: Stage, name: str, how: str) -> None:
    """A crash is noticed by nobody. Either way, what was in memory is gone when the client starts again."""
    player = stage.players[name]
    if how == "stop":
        player.carry_out(player.core.stop())
    stage.disconnect(player, noticed=False)
    stage.applications.remove(player)


@command(r"client (?P<name>\S+) disconnect(?P<unnoticed> unnoticed)?")
def disconnect(stage: Stage, name: str, unnoticed: str | None) -> None:
    stage.disconnect(stage.players[name], noticed=unnoticed is None)


@command(r"client (?P<name>\S+) connect")
def connect(stage: Stage, name: str) -> None:
    stage.connect(stage.players[name])


@command(r"client (?P<name>\S+) lose state")
def lose_state(stage: Stage, name: str) -> None:
    stage.players[name].state = None


@command(r"client (?P<name>\S+) (?P<how>wish|forget) (?P<object>\S+)")
def change_wishes(stage: Stage, name: str, how: str, object: str) -> None:
    """While the client does not run, what its application will state at the next start may change."""
    assert stage.players[name] not in stage.applications
    (set.add if how == "wish" else set.discard)(stage.players[name].wishes, name_from_text(object))


@command(r"client (?P<name>\S+) register (?P<object>\S+)(?: holding (?P<version>\d+))?(?: every (?P<interval_ms>\d+) ms)?")
def register(stage: Stage, name: str, object: str, version: str | None, interval_ms: str | None) -> None:
    """What it holds, it holds durably: it has learned it."""
    player, key = stage.players[name], name_from_text(object)
    if version is not None:
        player.store[key] = int(version)
    player.states_versions = version is not None
    player.register(key, interval_ms=None if interval_ms is None else int(interval_ms))


@command(r"client (?P<name>\S+) register (?P<first>\d+) to (?P<last>\d+)")
def register_many(stage: Stage, name: str, first: str, last: str) -> None:
    for number in range(int(first), int(last) + 1):
        stage.players[name].register(b"object-%d" % number)


@command(r"client (?P<name>\S+) unregister (?P<object>\S+)")
def unregister(stage: Stage, name: str, object: str) -> None:
    stage.players[name].unregister(name_from_text(object))


@command(r"client (?P<name>\S+) (?P<how>busy|prompt)")
def set_prompt(stage: Stage, name: str, how: str) -> None:
    player = stage.players[name]
    player.prompt = how == "prompt"
    while player.prompt and player.queue:
        player.deal_with()


@command(r"client (?P<name>\S+) ack(?: (?P<object>\S+))?")
def acknowledge(stage: Stage, name: str, object: str | None) -> None:
    player = stage.players[name]
    places = [place for place, one in enumerate(player.queue) if object in (None, one.object)]
    player.deal_with(places[0])


@command(r"client (?P<name>\S+) give back")
def give_back(stage: Stage, name: str) -> None:
    stage.players[name].give_back()


@command(r"client (?P<name>\S+) forge ack (?P<object>\S+)@(?P<version>\d+) of (?P<seqno>\S+)")
def forge(stage: Stage, name: str, object: str, version: str, seqno: str) -> None:
    stage.forge(stage.players[name], Ack(object=object, seqno=str(seqno_from_text(seqno)), version=version))


# The channel.


@command(r"network (?P<how>hold|flow)")
def set_flowing(stage: Stage, how: str) -> None:
    stage.flowing = how == "flow"


@command(r"network show")
def show_network(stage: Stage) -> None:
    for number, packet in enumerate(stage.in_flight, 1):
        stage.say(f"{number}. {stage.packet_text(packet)}")


@command(r"deliver(?: (?P<number>\d+))?")
def deliver(stage: Stage, number: str | None) -> None:
    if number is not None:
        stage.deliver(stage.in_flight.pop(int(number) - 1))
        return
    for _ in range(1_000):
        if not stage.in_flight:
            return
        stage.deliver(stage.in_flight.pop(0))
        stage.run(0)
    raise AssertionError("client and server talk without end")


@command(r"drop (?P<number>\d+)")
def drop(stage: Stage, number: str) -> None:
    stage.say(f"lost: {stage.packet_text(stage.in_flight.pop(int(number) - 1))}")


@command(r"duplicate (?P<number>\d+)")
def duplicate(stage: Stage, number: str) -> None:
    packet = stage.in_flight[int(number) - 1]
    stage.in_flight.append(packet)
    stage.say(f"twice: {stage.packet_text(packet)}")


# The pipeline.


@command(r"publish (?P<object>\S+) (?P<version>\d+)(?: by (?P<source>\S+))?")
def publish(stage: Stage, object: str, version: str, source: str | None) -> None:
    stage.publish(name_from_text(object), int(version), None if source is None else stage.players[source])


@command(r"publish again")
def publish_again(stage: Stage) -> None:
    """The feed brings its last update once more, as feeds may."""
    updates = stage.feed.topics[UPDATES]
    updates.append(updates[-1])
    stage.feed.spoken(UPDATES, len(updates) - 1)


@command(r"matcher (?P<task>\S+) take (?P<what>updates|registrations|everything)(?: of (?P<object>\S+))?")
def take(stage: Stage, task: str, what: str, object: str | None) -> None:
    topic = {"updates": UPDATES, "registrations": REGISTRATIONS}.get(what)
    stage.pipeline.take(task, topic, None if object is None else name_from_text(object))


@command(r"matcher (?P<task>\S+) (?P<step>write|read|match|die)")
def step(stage: Stage, task: str, step: str) -> None:
    if step == "die":
        stage.pipeline.die(task)
    else:
        getattr(stage.pipeline, step)(stage.pipeline.by_name[task])


@command(r"matcher (?P<task>\S+) tell")
def tell(stage: Stage, task: str) -> None:
    stage.tell(stage.pipeline.by_name[task])


@command(r"matcher (?P<task>\S+) tell deposed")
def tell_deposed(stage: Stage, task: str) -> None:
    stage.pipeline.tell(stage.pipeline.by_name[task], stage.pipeline.deposed)


@command(r"matcher run")
def run_matcher(stage: Stage) -> None:
    stage.match_everything()


# The Registrar.


@command(r"registrar (?P<what>crash|start|restart)")
def registrar_process(stage: Stage, what: str) -> None:
    """A crash takes the connections along; at a restart they live on, since another process holds them."""
    if what == "crash":
        stage.stop_registrar(links_break=True)
    elif what == "start":
        stage.start_registrar()
        stage.announce()
    else:
        stage.restart_registrar(links_break=False)


@command(r"registrar (?P<how>unreachable|reachable)")
def set_reachable(stage: Stage, how: str) -> None:
    stage.reachable = how == "reachable"


@command(r"registrar depose")
def depose(stage: Stage) -> None:
    """Another gateway owns the clients now; the old one lives on, with the rows in its memory, and may still be asked."""
    assert isinstance(stage.registrar, RegistrarShell)
    stage.pipeline.deposed, stage.registrar = stage.registrar, None
    stage.pipeline.deposed.sessions.clear()
    for link in stage.links.values():
        link.session = None
    stage.start_registrar()
    stage.announce()


@command(r"registrar limit (?P<count>\d+)")
def limit(stage: Stage, count: str) -> None:
    assert isinstance(stage.registrar, RegistrarShell)
    stage.registrar.registrations_max = int(count)


@command(r"registrar dies after (?P<count>\d+) writes?")
def die_after(stage: Stage, count: str) -> None:
    stage.registrar_steps.faults.extend([Fault.NONE] * (int(count) - 1) + [Fault.DIED_AFTER])


# Rows.


def _row(stage: Stage, name: str) -> RowKey:
    return stage.client_key(name) if name.startswith("id-") else object_row(object_key("demo", 0, name_from_text(name)), PARTITIONS)


@command(r"row (?P<name>\S+)")
def show_row(stage: Stage, name: str) -> None:
    key = _row(stage, name)
    for _, cell in sorted(stage.table.rows.get(key, {}).items()):
        stage.say(f"  {cell_text(key, cell)}")


@command(r"(?P<what>lose|copy|restore|unavailable|available) row (?P<name>\S+)")
def change_row(stage: Stage, what: str, name: str) -> None:
    key = _row(stage, name)
    if what == "lose":
        del stage.table.rows[key]
    elif what == "copy":
        stage.copies[key] = dict(stage.table.rows[key])
    elif what == "restore":
        stage.table.rows[key] = dict(stage.copies[key])
    elif what == "unavailable":
        stage.table.unavailable.add(key)
    else:
        stage.table.unavailable.remove(key)


@command(r"lose registrar table")
def lose_registrar_table(stage: Stage) -> None:
    stage.lose_registrar_table()


@command(r"lose feed")
def lose_feed(stage: Stage) -> None:
    """All records are gone. The manifest gives it a new incarnation: versions that the old one brought count as unknown."""
    for topic, values in stage.feed.topics.items():
        values.clear()
        stage.feed.committed[topic] = 0
    stage.pipeline.forget()
    stage.pipeline.feed_incarnation += 1


# Time, and the end.


@command(r"pass (?P<seconds>[0-9.]+) s")
def let_pass(stage: Stage, seconds: str) -> None:
    stage.run(float(seconds))


@command(r"check")
def check(stage: Stage) -> None:
    for player in stage.applications:
        shown = [f"{one.object}@{'unknown' if one.version is None else one.version}" for one in player.history]
        stage.say(f"{name_of_player(player)} was shown {', '.join(shown) or 'nothing'} in this run")
    faults = stage.broken_promises()
    if stage.in_flight:
        faults.append(f"{len(stage.in_flight)} messages are in flight")
    for line in faults or [ALL_IS_SETTLED]:
        stage.say(line)
