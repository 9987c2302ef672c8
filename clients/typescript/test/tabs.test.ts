/** The tabs of a page as pure machines, in all orders; then their shell, with Node's own locks and channels. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Client } from "../src/client.ts";
import { type Name, nameFromText } from "../src/core/model.ts";
import type { Notification } from "../src/registrations.ts";
import { LiveCache, MemoryStore } from "../src/livecache.ts";
import { MemoryState } from "../src/stores/memory.ts";
import { Hub, LEFT_MAX } from "../src/tabs/hub.ts";
import { type FromLeader, scopeOf, type Standing, type Wish } from "../src/tabs/messages.ts";
import { Tab, type TabAction } from "../src/tabs/tab.ts";
import { HandClock } from "../src/testing/clock.ts";

const STANDING: Standing = {
  ...{ device: "d", connected: true, inSync: true, confirmed: true, follows: true },
  ...{ url: "http://x", channel: "websocket", unreachable: "", credentialProblem: "", epoch: 0, validS: 100 },
};

/** Some tabs, at most one hub, and what the session below it was asked. Messages travel at once, in order. */
class Page {
  nowS = 0;
  bornS = 0; // the reign
  term = 0;
  hub: Hub | null = null;
  readonly tabs = new Map<string, Tab>();
  readonly shown: string[] = []; // "tab object=version"
  readonly open = new Map<string, Notification>(); // the last one shown, by tab and object
  readonly session: string[] = []; // what the service is told
  #seqno = 0n;

  tab(id: string, bornS = this.nowS): void {
    const tab = new Tab();
    tab.bornS = bornS;
    this.tabs.set(id, tab);
    if (this.hub) this.#do(id, tab.heard(this.nowS, this.#word));
  }

  /** A reign begins: every tab hears of it, in the given order. */
  lead(order: string[] = [...this.tabs.keys()]): void {
    this.hub = new Hub();
    this.bornS = this.nowS;
    this.term += 1;
    for (const id of order) this.hear(id);
    for (const id of order) this.#do(id, this.#tab(id).heard(this.nowS, { kind: "standing", standing: STANDING }));
  }

  get #word(): FromLeader {
    return { kind: "lead", term: `${this.term}`, after: `${this.term - 1}`, ageS: this.nowS - this.bornS };
  }

  /** It hears of the reign, perhaps late. */
  hear(id: string): void {
    this.#do(id, this.#tab(id).heard(this.nowS, this.#word));
  }

  register(id: string, object: string, version: bigint | null = null, intervalMs?: number): void {
    this.#do(id, this.#tab(id).register(nameFromText(object), version, 0, intervalMs));
  }

  unregister(id: string, object: string, forget = false): void {
    this.#do(id, this.#tab(id).unregister(nameFromText(object), forget));
  }

  /** The service confirms what the session registered. */
  confirm(object: string): void {
    this.#carryOut(this.hub?.status({ kind: "status", name: nameFromText(object), registered: true }) ?? []);
  }

  notify(object: string, version: bigint | null): void {
    const seqno = ++this.#seqno;
    this.#carryOut(this.hub?.notified({ name: nameFromText(object), version, epoch: 0, seqno, session: 1 }) ?? []);
  }

  acknowledge(id: string, object: string): void {
    const notification = this.open.get(`${id} ${object}`);
    assert.ok(notification, `${id} was not shown ${object}`);
    this.#do(id, this.#tab(id).acknowledge(notification));
  }

  giveBack(id: string, object: string): void {
    this.#do(id, this.#tab(id).giveBack(this.nowS, this.open.get(`${id} ${object}`) as Notification));
  }

  pass(seconds: number): void {
    this.nowS += seconds;
    for (const [id, tab] of this.tabs) if ((tab.nextDeadline() ?? Infinity) <= this.nowS) this.#do(id, tab.tick(this.nowS));
  }

  /** The tab is closed; the leader notices. */
  close(id: string): void {
    this.tabs.delete(id);
    this.#carryOut(this.hub?.gone(id) ?? []);
  }

  taken(list: string[]): string[] {
    return list.splice(0);
  }

  #tab(id: string): Tab {
    return this.tabs.get(id) as Tab;
  }

  #do(id: string, actions: TabAction[]): void {
    for (const action of actions) {
      if (action.kind === "say") this.#carryOut(this.hub?.said(id, action.message) ?? []);
      if (action.kind !== "notify") continue;
      const { name, version } = action.notification;
      this.shown.push(`${id} ${name}=${version ?? "?"}`);
      this.open.set(`${id} ${name}`, action.notification);
    }
  }

  #carryOut(actions: ReturnType<Hub["said"]>): void {
    for (const action of actions) {
      if (action.kind === "post") this.#hear(action.to, action.message);
      else if (action.kind === "register") this.session.push(`register ${wished(action.wish)}`);
      else if (action.kind === "unregister") this.session.push(`unregister ${action.name}`);
      else if (action.kind === "acknowledge") this.session.push(`ack ${action.notification.name}=${action.notification.version ?? "?"}`);
      else this.session.push("forget");
    }
  }

  #hear(id: string, message: FromLeader): void {
    const tab = this.tabs.get(id);
    if (tab) this.#do(id, tab.heard(this.nowS, message));
  }
}

const wished = ({ name, version, intervalMs }: Wish): string => `${name} ${version ?? "-"}${intervalMs === undefined ? "" : ` ${intervalMs} ms`}`;

function page(...ids: string[]): Page {
  const page = new Page();
  for (const id of ids) page.tab(id);
  page.lead();
  return page;
}

/** Both tabs registered it, and it is confirmed. */
function shared(): Page {
  const both = page("A", "B");
  both.register("A", "x");
  both.register("B", "x");
  both.confirm("x");
  both.taken(both.session);
  return both;
}

test("an object that two tabs register is registered once, and unregistered when neither wishes for it", () => {
  const both = page("A", "B");
  both.register("A", "x");
  both.register("B", "x");
  both.register("B", "y", 7n);
  assert.deepEqual(both.taken(both.session), ["register x -", "register y 7"]);
  both.unregister("A", "x");
  assert.deepEqual(both.taken(both.session), []);
  both.close("B");
  assert.deepEqual(both.taken(both.session), ["unregister x", "unregister y"]);
});

test("another interval is told to the service, and is a tab's when that is confirmed; without one what was stated stays", () => {
  const alone = page("A");
  const confirmed = (): boolean => alone.tabs.get("A")?.confirmed(alone.nowS) ?? false;
  alone.register("A", "x", 7n, 500);
  alone.confirm("x");
  assert.deepEqual(alone.taken(alone.session), ["register x 7 500 ms"]);
  alone.register("A", "x");
  alone.register("A", "x", null, 500);
  assert.deepEqual([alone.taken(alone.session), confirmed()], [[], true]);
  for (const intervalMs of [1_000, 0]) {
    alone.register("A", "x", 8n, intervalMs);
    assert.deepEqual([alone.taken(alone.session), confirmed()], [[`register x - ${intervalMs} ms`], false]);
    alone.confirm("x");
    assert.equal(confirmed(), true);
  }
  alone.register("A", "x", null, 250);
  alone.register("A", "x");
  alone.taken(alone.session);
  alone.lead();
  assert.deepEqual(alone.taken(alone.session), ["register x 8 250 ms"]); // the next leader is told what holds
  alone.unregister("A", "x");
  alone.register("A", "x");
  assert.deepEqual(alone.taken(alone.session), ["unregister x", "register x -"]);
});

test("of several tabs the last to state another interval counts, with what the first one holds; the others go on as before", () => {
  const both = page("A", "B");
  both.register("A", "x", 3n);
  both.confirm("x");
  both.register("B", "x", 9n, 500);
  assert.deepEqual(both.taken(both.session), ["register x 3", "register x - 500 ms"]);
  assert.equal(both.tabs.get("A")?.confirmed(both.nowS), true);
  assert.equal(both.tabs.get("B")?.confirmed(both.nowS), false);
  both.confirm("x");
  assert.equal(both.tabs.get("B")?.confirmed(both.nowS), true);
  both.register("A", "x", null, 500);
  assert.deepEqual([both.taken(both.session), both.tabs.get("A")?.confirmed(both.nowS)], [[], true]); // it is so already
  both.register("A", "x", null, 800);
  assert.deepEqual(both.taken(both.session), ["register x - 800 ms"]);
});

test("a notification goes to every tab that registered, and is acknowledged when each has acknowledged", () => {
  const both = shared();
  both.tab("C");
  both.notify("x", 5n);
  assert.deepEqual(both.taken(both.shown), ["A x=5", "B x=5"]);
  both.acknowledge("A", "x");
  assert.deepEqual(both.session, []);
  both.acknowledge("A", "x"); // twice counts once
  assert.deepEqual(both.session, []);
  both.acknowledge("B", "x");
  assert.deepEqual(both.session, ["ack x=5"]);
});

test("who is gone, or wishes for it no more, is not waited for; but what nobody dealt with is not acknowledged", () => {
  const both = shared();
  both.notify("x", 5n);
  both.acknowledge("A", "x");
  both.close("B");
  assert.deepEqual(both.taken(both.session), ["ack x=5"]);
  both.notify("x", 6n);
  both.close("A");
  assert.deepEqual(both.taken(both.session), ["unregister x"]);
});

test("a later version takes the place of one that waits; an unknown is acknowledged apart", () => {
  const both = shared();
  both.notify("x", 5n);
  both.notify("x", null);
  both.acknowledge("A", "x");
  both.notify("x", 6n);
  both.acknowledge("A", "x");
  assert.deepEqual(both.session, []);
  both.acknowledge("B", "x"); // of 6, which covers 5
  assert.deepEqual(both.session, ["ack x=6"]);
  assert.deepEqual(both.shown, ["A x=5", "B x=5", "A x=?", "B x=?", "A x=6", "B x=6"]);
});

test("a tab that comes late is told what came in this reign, and what waits", () => {
  const both = page("A", "B");
  both.register("A", "x");
  both.confirm("x");
  both.notify("x", 5n);
  both.acknowledge("A", "x");
  both.nowS = 10;
  both.tab("C");
  both.taken(both.shown);
  both.register("C", "x");
  assert.deepEqual(both.taken(both.shown), ["C x=5"]);
  both.tab("D");
  both.register("D", "x", 5n); // it has it
  assert.deepEqual(both.taken(both.shown), []);
  both.notify("x", 6n);
  both.tab("E");
  both.register("E", "x", 5n);
  assert.deepEqual(both.taken(both.shown), ["A x=6", "C x=6", "D x=6", "E x=6"]);
  both.taken(both.session);
  for (const id of ["A", "C", "D"]) both.acknowledge(id, "x");
  assert.deepEqual(both.session, []);
  both.acknowledge("E", "x");
  assert.deepEqual(both.session, ["ack x=6"]);
});

test("after an unknown in this reign, whoever comes late is told unknown", () => {
  const one = page("A");
  one.register("A", "x");
  one.notify("x", null);
  one.notify("x", 5n);
  one.acknowledge("A", "x");
  one.tab("B");
  one.taken(one.shown);
  one.register("B", "x", 6n);
  assert.equal(one.taken(one.shown)[0], "B x=?");
});

test("what another tab stated as held, but was never told of, is told to whoever comes with less", () => {
  const one = page("A");
  one.register("A", "x", 9n);
  one.tab("B");
  one.register("B", "x", 8n);
  assert.deepEqual(one.shown, ["B x=9"]);
});

test("the leader is gone in the midst of a delivery: nothing is lost, nothing is shown twice", () => {
  const both = shared();
  both.notify("x", 5n);
  both.acknowledge("A", "x");
  both.taken(both.shown);
  // The leader's tab (not one of these) is gone. The service was not told, and delivers again to the next.
  both.nowS = 10;
  both.lead(["B", "A"]);
  assert.deepEqual(both.taken(both.session), ["register x -"]);
  both.confirm("x");
  both.notify("x", 5n);
  assert.deepEqual(both.taken(both.shown), []); // B is still at work on it, A has acknowledged it: it does so again
  assert.deepEqual(both.session, []);
  both.acknowledge("B", "x");
  assert.deepEqual(both.session, ["ack x=5"]);
});

test("what was acknowledged while nobody led is acknowledged to the next", () => {
  const both = shared();
  both.notify("x", 5n);
  both.hub = null;
  both.acknowledge("A", "x");
  both.acknowledge("B", "x");
  both.lead();
  both.taken(both.shown);
  both.notify("x", 5n);
  assert.deepEqual([both.shown, both.taken(both.session).slice(1)], [[], ["ack x=5"]]);
});

test("a wish that no leader confirmed may have missed something: the next tells it unknown, and the others nothing", () => {
  const both = shared();
  both.hub = null; // is gone, and had told others of a version that B fetched before
  both.nowS = 5;
  both.register("B", "y");
  both.nowS = 10;
  both.lead();
  assert.deepEqual(both.taken(both.shown), ["B y=?"]);
  assert.deepEqual(both.taken(both.session), ["register x -", "register y -"]);
});

test("an unknown of the last reign is shown again in the next: its number says nothing there", () => {
  const both = shared();
  both.notify("x", null);
  both.lead();
  both.taken(both.shown);
  both.notify("x", null);
  assert.deepEqual(both.taken(both.shown), ["A x=?", "B x=?"]);
});

test("what a tab fails on it is shown again, after pauses that double; the others are not", () => {
  const both = shared();
  both.notify("x", 5n);
  both.acknowledge("B", "x");
  both.taken(both.shown);
  for (const pauseS of [1, 2, 4]) {
    both.giveBack("A", "x");
    both.pass(pauseS - 0.1);
    assert.deepEqual(both.taken(both.shown), []);
    both.pass(0.2);
    assert.deepEqual(both.taken(both.shown), ["A x=5"]);
  }
  both.giveBack("A", "x");
  both.notify("x", 6n);
  both.pass(100);
  assert.deepEqual(both.taken(both.shown), ["A x=6", "B x=6"]); // 5 is outdated
  both.acknowledge("A", "x");
  both.acknowledge("B", "x");
  assert.deepEqual(both.session, ["ack x=6"]);
});

test("an unknown that a tab fails on after the leader changed is shown again, and hides none of the new leader's", () => {
  const both = shared();
  for (const version of [null, 5n, null]) both.notify("x", version);
  const old = both.open.get("A x") as Notification;
  both.lead();
  both.taken(both.shown);
  both.tabs.get("A")?.giveBack(both.nowS, old);
  both.pass(2);
  assert.deepEqual(both.taken(both.shown), ["A x=?"]);
  both.notify("x", null); // of a lower number than the old one had
  assert.deepEqual(both.taken(both.shown), ["A x=?", "B x=?"]);
});

test("a registration that is refused for good is every tab's loss, and may be made again", () => {
  const both = shared();
  const name: Name = nameFromText("x");
  const refusal = { kind: "failed", name, transient: false, code: "too-many-registrations", message: "no" } as const;
  for (const action of both.hub?.status(refusal) ?? []) {
    if (action.kind === "post") both.tabs.get(action.to)?.heard(0, action.message);
  }
  assert.deepEqual([both.tabs.get("A")?.wishes.has(name), both.tabs.get("B")?.wishes.has(name)], [false, false]);
  both.register("B", "x");
  assert.deepEqual(both.session, ["register x -"]);
});

test("a tab knows what it is told of the connection, for as long as that holds", () => {
  const tab = new Tab();
  const x = nameFromText("x");
  tab.register(x, null, 0);
  tab.heard(0, { kind: "lead", term: "1", after: "", ageS: 0 });
  tab.heard(1, { kind: "standing", standing: STANDING });
  assert.deepEqual([tab.confirmed(1), tab.toldUntil(1, x)], [false, null]);
  tab.heard(2, { kind: "status", name: x, registered: true });
  assert.deepEqual([tab.confirmed(3), tab.toldUntil(3, x)], [true, 3]);
  assert.deepEqual([tab.confirmed(102), tab.toldUntil(102, x)], [false, 1]); // the leader is silent
  tab.heard(103, { kind: "standing", standing: { ...STANDING, follows: false } });
  assert.equal(tab.toldUntil(104, x), 1);
  tab.heard(105, { kind: "lead", term: "1", after: "", ageS: 0 });
  assert.deepEqual([tab.confirmed(105), tab.toldUntil(105, x)], [false, null]);
});

test("when the service has lost everything and counts from a lower epoch, its versions are shown", () => {
  const tab = new Tab();
  const name = nameFromText("x");
  tab.register(name, null, 0);
  tab.heard(0, { kind: "lead", term: "1", after: "", ageS: 0 });
  tab.heard(0, { kind: "standing", standing: { ...STANDING, epoch: 3 } });
  const shown = (epoch: number, version: bigint, seqno: bigint): number =>
    tab.heard(0, { kind: "notify", delivery: { name, version, epoch, seqno } }).filter(({ kind }) => kind === "notify").length;
  assert.equal(shown(3, 7n, 1n), 1);
  assert.equal(shown(0, 1n, 2n), 0); // late
  tab.heard(0, { kind: "standing", standing: { ...STANDING, epoch: 0 } });
  assert.equal(shown(0, 1n, 3n), 1);
});

test("a tab that hears of the next leader late is told what the others were told meanwhile", () => {
  const both = shared();
  both.nowS = 10;
  both.lead(["A"]);
  both.confirm("x");
  both.notify("x", 9n);
  both.acknowledge("A", "x");
  assert.equal(both.taken(both.session).at(-1), "ack x=9");
  both.taken(both.shown);
  both.hear("B");
  assert.deepEqual(both.taken(both.shown), ["B x=9"]);
  both.notify("x", 10n);
  both.hear("B"); // as if it had followed another in between: it counts deliveries anew, and is told again what waits
  both.taken(both.session);
  both.acknowledge("A", "x");
  assert.deepEqual(both.session, []);
  const ten: Notification = { name: nameFromText("x"), version: 10n, epoch: 0, seqno: 0n, session: 0 };
  both.open.set("B x", ten);
  both.acknowledge("B", "x");
  assert.deepEqual(both.session, ["ack x=10"]);
});

test("a tab that one leader never heard of is told unknown by the next: what that one acknowledged nobody knows", () => {
  const both = shared();
  both.nowS = 10;
  both.lead(["A"]);
  both.confirm("x");
  both.notify("x", 9n);
  both.acknowledge("A", "x");
  both.taken(both.shown);
  both.lead();
  assert.deepEqual(both.taken(both.shown), ["B x=?"]);
  both.nowS = 20;
  both.lead(); // it heard of the last one, but was not confirmed by it
  assert.deepEqual(both.taken(both.shown), ["A x=?", "B x=?"]);
});

test("what a tab states to the next leader is told to those that have less: the service will not tell it again", () => {
  const both = shared();
  both.register("A", "x", 9n); // it fetched that before anybody was told
  both.nowS = 10;
  both.lead(["A", "B"]);
  assert.deepEqual(both.taken(both.session), ["register x 9"]);
  assert.deepEqual(both.taken(both.shown), ["B x=9"]);
});

test("what was told to a tab that has left since is told to the next one, and not again to the same", () => {
  const both = page("A", "B");
  both.register("A", "x");
  both.confirm("x");
  both.notify("x", null);
  both.acknowledge("A", "x");
  both.unregister("A", "x");
  both.taken(both.shown);
  both.register("A", "x");
  assert.deepEqual(both.taken(both.shown), []);
  both.unregister("A", "x", true); // it forgets
  both.register("A", "x");
  assert.deepEqual(both.taken(both.shown), ["A x=?"]);
  both.close("A");
  both.register("B", "x");
  assert.deepEqual(both.taken(both.shown), ["B x=?"]);
  assert.deepEqual(both.session.filter((asked) => asked === "unregister x").length, 3);
});

test("of very many objects that tabs left, the oldest are forgotten: then whoever comes is told unknown", () => {
  const hub = new Hub();
  hub.said("A", { kind: "restate", older: false, wishes: [] });
  const wish = (object: string): Wish => ({ name: nameFromText(object), version: null, epoch: 0, told: false });
  const told = (object: string): number => hub.said("A", { kind: "register", wish: wish(object) }).filter(({ kind }) => kind === "post").length;
  for (let number = 0; number <= LEFT_MAX; number++) {
    assert.equal(told(`o${number}`), 0);
    const actions = hub.said("A", { kind: "unregister", name: nameFromText(`o${number}`), forget: false });
    assert.deepEqual(actions, [{ kind: "unregister", name: nameFromText(`o${number}`), forget: true }]); // the session keeps no marks
  }
  assert.deepEqual([told("o0"), told("o1")], [1, 0]);
});

test("a registration that was refused for good is forgotten by the session, too", () => {
  const hub = new Hub();
  const name = nameFromText("x");
  hub.said("A", { kind: "restate", older: false, wishes: [{ name, version: null, epoch: 0, told: false }] });
  const actions = hub.status({ kind: "failed", name, transient: false, code: "too-many-registrations", message: "no" });
  assert.deepEqual(actions.at(-1), { kind: "unregister", name, forget: true });
});

test("of several that an application fails on, the last is shown again, whatever becomes of the earlier ones", () => {
  for (const earlier of ["acknowledge", "give back"]) {
    const one = page("A");
    one.register("A", "x");
    one.notify("x", 5n);
    const five = one.open.get("A x") as Notification;
    one.notify("x", 6n);
    one.giveBack("A", "x");
    if (earlier === "acknowledge") one.tabs.get("A")?.acknowledge(five);
    else one.tabs.get("A")?.giveBack(one.nowS, five);
    one.taken(one.shown);
    one.pass(5);
    assert.deepEqual(one.taken(one.shown), ["A x=6"], earlier);
  }
});

test("a tab is older than a reign by its own clock and the leader's, whatever the time of day; in doubt it is", () => {
  const older = (bornS: number, nowS: number, ageS: number): boolean => {
    const tab = new Tab();
    tab.bornS = bornS;
    const [restate] = tab.heard(nowS, { kind: "lead", term: "1", after: "", ageS });
    assert.ok(restate?.kind === "say" && restate.message.kind === "restate");
    return restate.message.older;
  };
  assert.deepEqual([older(0, 100, 99), older(0, 100, 101), older(0, 100, 100)], [true, false, false]);
});

test("when a leader is silent for longer than its word holds, a tab tells so and asks; then it is unanswered", () => {
  const tab = new Tab();
  const kinds = (actions: TabAction[]): string[] => actions.map((action) => (action.kind === "say" ? action.message.kind : action.kind));
  assert.equal(tab.nextDeadline(), null);
  tab.heard(0, { kind: "lead", term: "1", after: "", ageS: 0 });
  tab.heard(0, { kind: "standing", standing: STANDING });
  assert.deepEqual([tab.nextDeadline(), kinds(tab.tick(99))], [100, []]);
  assert.deepEqual([kinds(tab.tick(100)), tab.now(100)], [["changed", "hello"], null]);
  assert.equal(tab.nextDeadline(), 110);
  assert.deepEqual(kinds(tab.tick(110)), ["changed", "hello", "unanswered"]);
  assert.deepEqual(kinds(tab.tick(125)), ["changed", "hello"]); // it slept itself: the answer may be on its way
  tab.heard(126, { kind: "soon" });
  assert.deepEqual(kinds(tab.tick(136)), ["changed", "hello"]);
  tab.heard(137, { kind: "standing", standing: STANDING });
  assert.equal(tab.nextDeadline(), 237);
  assert.deepEqual(kinds(tab.ask(140, "wake")), ["wake"]);
  tab.ask(145, "wake");
  assert.deepEqual(kinds(tab.tick(150)), ["changed", "hello", "unanswered"]);
});

test("whoever signs out says so to each leader", () => {
  const one = page("A");
  one.hub = null; // is gone, and nobody has noticed yet
  one.tabs.get("A")?.forget();
  one.lead();
  assert.deepEqual(one.session, ["forget"]);
});

test("very many that an application failed on are each shown again", () => {
  const tab = new Tab();
  tab.heard(0, { kind: "lead", term: "1", after: "", ageS: 0 });
  const many = 200_000;
  for (let number = 0; number < many; number++) {
    const name = nameFromText(`o${number}`);
    tab.register(name, null, 0);
    const [shown] = tab.heard(0, { kind: "notify", delivery: { name, version: 1n, epoch: 0, seqno: 1n } });
    assert.ok(shown?.kind === "notify");
    tab.giveBack(0, shown.notification);
    tab.nextDeadline();
  }
  assert.equal(tab.nextDeadline(), 1);
  assert.equal(tab.tick(1).length, many);
});

/** A service that grants, confirms and notifies what the test says, for whichever tab connects. */
class Backend {
  readonly sockets = new Set<FakeSocket>();
  readonly has = new Map<string, number>();
  acks: string[] = [];
  said: string[] = [];
  summary: unknown = null;
  inits = 0;
  user = ""; // who may speak, if not everybody
  readonly shown: string[] = []; // credentials
}
let backend = new Backend();

class FakeSocket {
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: string }) => void) | null = null;
  onclose: ((event: { code: number; wasClean: boolean }) => void) | null = null;
  onerror: unknown = null;

  constructor() {
    backend.sockets.add(this);
    queueMicrotask(() => this.onopen?.());
  }

  close(): void {
    if (backend.sockets.delete(this)) queueMicrotask(() => this.onclose?.({ code: 1000, wasClean: true }));
  }

  say(fields: object): void {
    queueMicrotask(() => this.onmessage?.({ data: JSON.stringify(fields) }));
  }

  /** In agreement with whatever the client wishes for. */
  send(data: string): void {
    const { init, summary, token = "t", register = [], unregister = [], acks = [], credential = "" } = JSON.parse(data);
    if (credential) backend.shown.push(credential);
    if (backend.user && init && credential !== backend.user) {
      return this.say({ credential: { wanted: true, code: "credential-refused", message: "Not so." } });
    }
    if (credential) this.say({ credential: {} });
    for (const { object, notify_interval_ms: ms } of register) backend.said.push(`register ${object}${ms === undefined ? "" : ` ${ms} ms`}`);
    for (const { object } of unregister) backend.said.push(`unregister ${object}`);
    backend.acks.push(...acks.map((ack: { object: string; version?: string }) => `${ack.object}=${ack.version ?? "?"}`));
    backend.summary = summary;
    if (init) {
      backend.inits += 1;
      return this.say({ token, summary, grant: { nonce: init.nonce, token }, config: { retry_min_s: 0.01, connect_min_s: 0.01 } });
    }
    const answer = (objects: { object: string }[], state: string): object[] => objects.map(({ object }) => ({ object, state }));
    this.say({ token, summary, status: [...answer(register, "registered"), ...answer(unregister, "unregistered")] });
  }

  notify(object: string, version: number, epoch = 0): void {
    this.say({ token: "t", notify: [{ object, seqno: "1", version: String(version), epoch }], unsettled: 1, summary: backend.summary });
  }
}

async function eventually(happened: () => boolean): Promise<void> {
  for (let turn = 0; turn < 2_000 && !happened(); turn++) await new Promise((done) => setTimeout(done, 2));
  assert.ok(happened(), String(happened));
}

test("the shell: two tabs, one connection; when the leader closes the other goes on", async () => {
  backend = new Backend();
  const state = new MemoryState();
  const application = `tabs-${process.pid}`;
  const open = (): Client => new Client("http://x", { application, state, tabs: true, WebSocket: FakeSocket });
  const shown: string[] = [];
  const first = open();
  const second = open();
  await first.register("x", ({ version }) => void shown.push(`first ${version}`));
  let finish = (): void => {};
  await second.register("x", ({ version }) => {
    shown.push(`second ${version}`);
    return new Promise<void>((done) => (finish = done));
  });
  await Promise.all([first.synced(5_000), second.synced(5_000)]);
  assert.equal(backend.sockets.size, 1);
  assert.deepEqual([first.channel, second.channel, first.device === second.device], ["websocket", "websocket", true]);
  [...backend.sockets][0]?.notify("x", 5);
  await eventually(() => shown.length === 2);
  assert.deepEqual(shown.splice(0).sort(), ["first 5", "second 5"]);
  await first.close();
  await eventually(() => backend.inits === 2 && backend.sockets.size === 1);
  assert.deepEqual(backend.acks, []); // the second is still at work on it
  await second.synced(5_000);
  [...backend.sockets][0]?.notify("x", 5);
  finish();
  await eventually(() => backend.acks.length > 0);
  assert.deepEqual([shown, backend.acks[0]], [[], "x=5"]);
  assert.equal(second.toldUntil("x") === null, false);
  await second.close();
});

test("the shell: another interval reaches the service, from the tab that leads and from another", async (t) => {
  backend = new Backend();
  const state = new MemoryState();
  const open = (): Client => new Client("http://x", { application: `paced-${process.pid}`, state, tabs: true, WebSocket: FakeSocket });
  const [first, second] = [open(), open()];
  t.after(() => Promise.all([first.close(), second.close()]));
  await first.register("x", null, { notifyIntervalMs: 500 });
  await first.synced(5_000);
  await first.register("x");
  await first.register("x", null, { notifyIntervalMs: 1_000 });
  await first.synced(5_000);
  await second.register("x", null, { notifyIntervalMs: 1_000 });
  await second.synced(5_000);
  await second.register("x", null, { notifyIntervalMs: 0 });
  await second.synced(5_000);
  assert.deepEqual(backend.said, ["register x 500 ms", "register x 1000 ms", "register x 0 ms"]);
});

test("the shell: a tab that is closed is not waited for, and one that signs out ends them all", async () => {
  backend = new Backend();
  const state = new MemoryState();
  const application = `forget-${process.pid}`;
  const open = (): Client => new Client("http://x", { application, state, tabs: true, WebSocket: FakeSocket });
  const [first, second, third] = [open(), open(), open()];
  await first.register("x", () => {});
  await second.register("x", () => new Promise<void>(() => {}));
  await third.start();
  await Promise.all([first, second].map((client) => client.synced(5_000)));
  [...backend.sockets][0]?.notify("x", 5);
  await second.close();
  await eventually(() => backend.acks.length === 1);
  const store = new MemoryStore({ durable: true });
  const cache = new LiveCache(first, () => "value", { store });
  await cache.get("y");
  assert.equal(store.entries.size, 1);
  const ended: Promise<unknown>[] = [first, third].map((client) => new Promise((done) => client.addEventListener("stopped", done)));
  await assert.rejects(third.forget(50), { name: "TimeoutError" }); // this service does not know how
  await Promise.all(ended);
  assert.equal(state.read(), null);
  await assert.rejects(first.register("y"), { code: "client-stopped" });
  await eventually(() => store.entries.size === 0);
  await first.close();
});

test("the shell: a credential that one tab is given is every tab's; the leader asks its own provider; a refusal is told to all", async () => {
  backend = new Backend();
  backend.user = "new";
  const state = new MemoryState();
  const application = `users-${process.pid}`;
  const config = { retry_min_s: 0.01, retry_max_s: 0.05 };
  const open = (credential?: string | (() => string)): Client =>
    new Client("http://x", { application, state, tabs: true, WebSocket: FakeSocket, config, ...(credential && { credential }) });
  const [first, second, third] = [open("old"), open("old"), open(() => "of the third")];
  const told: string[] = [];
  for (const client of [first, second]) client.addEventListener("credentialrefused", ({ detail }) => told.push(detail.code));
  await first.start();
  await second.start();
  await third.start();
  // Who comes later is not told again, but sees it.
  await eventually(() => told.length > 0 && [first, second, third].every((one) => one.credentialProblem === "credential-refused"));
  await second.useCredential("forged");
  await eventually(() => backend.shown.at(-1) === "forged");
  await second.useCredential("new");
  await Promise.all([first, second].map((client) => client.synced(5_000)));
  await eventually(() => third.credentialProblem === "");
  await first.close();
  await eventually(() => backend.inits === 2);
  assert.equal(backend.shown.at(-1), "new");
  assert.ok(!backend.shown.includes("of the third"), "it does not lead");
  backend.user = "of the third";
  await second.close();
  await eventually(() => backend.shown.at(-1) === "of the third");
  await third.synced(5_000);
  await third.close();
});

test("the shell: where the browser has locks but not for this page, each tab is a client of its own", async () => {
  backend = new Backend();
  const { request } = navigator.locks;
  navigator.locks.request = () => Promise.reject(new DOMException("opaque origin", "SecurityError"));
  try {
    const client = new Client("http://x", { application: "alone", tabs: true, state: new MemoryState(), WebSocket: FakeSocket });
    await client.register("x", () => {});
    await client.synced(5_000);
    assert.equal(backend.sockets.size, 1);
    await client.close();
  } finally {
    navigator.locks.request = request;
  }
});

test("the shell: after a reset of the application, what a tab acknowledges is acknowledged", async () => {
  backend = new Backend();
  const client = new Client("http://x", { application: `reset-${process.pid}`, tabs: true, state: new MemoryState(), WebSocket: FakeSocket });
  let finish = (): void => {};
  await client.register("x", () => new Promise<void>((done) => (finish = done)));
  await client.synced(5_000);
  [...backend.sockets][0]?.notify("x", 5, 1); // of the next epoch, without a handshake
  await eventually(() => !client.inSync);
  [...backend.sockets][0]?.say({ token: "t", summary: backend.summary }); // how things stand is told to the tabs once more
  await eventually(() => client.inSync);
  finish();
  await eventually(() => backend.acks.length > 0);
  assert.equal(backend.acks[0], "x=5");
  await client.close();
});

test("the shell: a tab whose last words come after its end is noticed to be gone all the same", async () => {
  backend = new Backend();
  const application = `ghost-${process.pid}`;
  const client = new Client("http://x", { application, tabs: true, state: new MemoryState(), WebSocket: FakeSocket });
  await client.register("x");
  await client.synced(5_000);
  const channel = new BroadcastChannel(scopeOf(application, ""));
  let term = "";
  channel.onmessage = ({ data }: MessageEvent) => void (term = data.term);
  const say = (tab: object): void => channel.postMessage({ from: "ghost", term, tab });
  say({ kind: "hello" }); // nobody holds its lock
  await eventually(() => term !== "");
  await new Promise((done) => setTimeout(done, 20));
  say({ kind: "restate", older: false, wishes: [{ name: nameFromText("y"), version: null, epoch: 0, told: false }] });
  await eventually(() => backend.said.includes("register y"));
  await eventually(() => backend.said.includes("unregister y"));
  channel.close();
  await client.close();
});

test("the shell: a tab takes the lead from one that does not answer; that one follows, and leads again later", async () => {
  backend = new Backend();
  const application = `frozen-${process.pid}`;
  const clock = new HandClock();
  const lead = `${scopeOf(application, "")}:lead`;
  const deposed = navigator.locks.request(lead, () => new Promise(() => {})); // a tab that was frozen when it had become the leader
  deposed.catch(() => {});
  const client = new Client("http://x", { application, tabs: true, clock, state: new MemoryState(), WebSocket: FakeSocket });
  const started = client.start();
  await passes(clock, () => backend.sockets.size === 1);
  await assert.rejects(deposed, { name: "AbortError" });
  await started;
  let release = (): void => {};
  const taken = new Promise<void>((done) => void navigator.locks.request(lead, { steal: true }, () => (done(), new Promise<void>((end) => (release = end)))));
  await taken;
  await eventually(() => !client.connected || backend.sockets.size === 0);
  await passes(clock, () => backend.sockets.size === 0, 2);
  release();
  await passes(clock, () => backend.sockets.size === 1);
  await client.close();
});

/** Second by second, with turns of the event loop in between: locks and channels are not the clock's. */
async function passes(clock: HandClock, happened: () => boolean, withinS = 30): Promise<void> {
  for (let second = 0; second < withinS && !happened(); second++) {
    await clock.advance(1);
    await new Promise((done) => setTimeout(done, 5));
  }
  assert.ok(happened(), String(happened));
}
