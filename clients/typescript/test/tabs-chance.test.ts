/**
 * Tabs that come, go, crash and lead in turn, by chance, over a model of the service: in the end every tab has what is current.
 *
 * A tab fetches whenever it is shown a notification, and when it registers: after the call, whether or not anybody leads; or some time
 * before it, as a cache may, and then it states that version or none. It deals with some notifications later, fails on some, and closes in
 * the midst of others. Some tabs are slow: what they say reaches the leader late. Nothing is ever shown to make up for a lost update but
 * what the tabs and the service owe each other.
 */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Handover } from "../src/core/handover.ts";
import { type Name, nameFromText } from "../src/core/model.ts";
import type { Notification } from "../src/registrations.ts";
import { Hub, type HubAction } from "../src/tabs/hub.ts";
import type { FromTab } from "../src/tabs/messages.ts";
import { Tab, type TabAction } from "../src/tabs/tab.ts";

const SEEDS = 40_000;
const STEPS_MIN = 15; // short ones: what comes later makes good what was missed
const STEPS_MORE = 50;
const OBJECTS = ["x"].map(nameFromText);

interface Page {
  readonly tab: Tab;
  readonly holds: Map<Name, bigint>; // what it fetched last, since it was loaded
  readonly atWork: Notification[];
  readonly sent: FromTab[]; // on their way to the leader
  term: number; // the last reign that it heard of
}

interface Owed {
  readonly name: Name;
  readonly version: bigint | null;
  readonly seqno: bigint;
}

const keyOf = (name: Name, version: bigint | null): string => `${version === null ? "?" : "="}${name}`;

class World {
  readonly pages: Page[] = [];
  readonly current = new Map<Name, bigint>(OBJECTS.map((name) => [name, 1n]));
  readonly known = new Map<Name, bigint>(); // to the service: published since it began
  readonly registered = new Set<Name>(); // at the service
  readonly owed = new Map<string, Owed>();
  hub: Hub | null = null;
  term = 0; // the reign
  bornS = 0;
  wished = new Set<Name>(); // by the session
  unsent = new Set<Name>(); // unregistrations of the session: to register again takes their place
  core = new Handover(); // the session's
  nowS = 0;
  readonly #random: () => number;
  #seqno = 0n;
  shown = 0;

  constructor(seed: number) {
    let state = Math.imul(seed, 2654435761);
    this.#random = () => {
      state = (state + 0x9e3779b9) | 0;
      let mixed = Math.imul(state ^ (state >>> 16), 0x85ebca6b); // neighbouring seeds and draws have nothing in common
      mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
      return ((mixed ^ (mixed >>> 16)) >>> 0) / 2 ** 32;
    };
  }

  pick<T>(all: readonly T[]): T | undefined {
    return all[Math.floor(this.#random() * all.length)];
  }

  step(): void {
    this.nowS += 1;
    const act = this.#random();
    const page = this.pick(this.pages);
    const name = this.pick(OBJECTS) as Name;
    if (act < 0.06 && this.pages.length < 3) this.open();
    else if (act < 0.1) this.reign();
    else if (act < 0.18) this.publish(name); // seldom: each makes good what the last one missed
    else if (act < 0.26) this.redeliver();
    else if (!page) return;
    else if (act < 0.4) this.register(page, name);
    else if (act < 0.45) this.fetch(page, name);
    else if (act < 0.5) this.unregister(page, name, this.#random() < 0.5);
    else if (act < 0.53) this.close(page);
    else if (act < 0.75) this.work(page, this.#random() < 0.8);
    else if (act < 0.8) this.do(page, page.tab.tick(this.nowS));
    else if (act < 0.83) this.send();
    else this.carry(page);
  }

  open(): void {
    const page: Page = { tab: new Tab(), holds: new Map(), atWork: [], sent: [], term: 0 };
    page.tab.bornS = this.nowS;
    this.pages.push(page);
    if (this.hub) this.hear(page);
  }

  hear(page: Page): void {
    page.term = this.term;
    const [term, after, ageS] = [`${this.term}`, `${this.term - 1}`, this.nowS - this.bornS];
    this.do(page, page.tab.heard(this.nowS, { kind: "lead", term, after, ageS }));
  }

  /** The leader is gone, with all that was on its way to it; at once or some time later there is another. */
  reign(): void {
    for (const { sent } of this.pages) sent.length = 0;
    const ends = this.hub !== null;
    this.hub = null;
    if (ends && this.#random() < 0.3) return;
    this.hub = new Hub();
    this.term += 1;
    this.bornS = this.nowS;
    this.wished = new Set();
    this.unsent = new Set();
    this.core = new Handover();
    for (const page of [...this.pages].sort(() => this.#random() - 0.5)) {
      if (this.#random() < 0.8) this.hear(page); // else it sleeps, and hears of it when it says something
      if (this.#random() < 0.5) this.carry(page); // else it restates late
    }
    // What nobody restated in time the session unregisters, and what it owed is void.
    for (const name of this.registered) if (!this.wished.has(name)) this.forgetAt(name);
  }

  publish(name: Name): void {
    const version = (this.current.get(name) as bigint) + 1n;
    this.current.set(name, version);
    const told = this.#random() < 0.9 ? version : null; // else the service knows only that something changed
    if (told === null) this.known.delete(name);
    else this.known.set(name, version);
    if (this.registered.has(name)) this.owe(name, told);
  }

  owe(name: Name, version: bigint | null): void {
    const owed = { name, version, seqno: ++this.#seqno };
    this.owed.set(keyOf(name, version), owed);
    if (this.#random() < 0.8) this.deliver(owed);
  }

  deliver({ name, version, seqno }: Owed): void {
    if (!this.hub || !this.wished.has(name)) return;
    const notification: Notification = { name, version, epoch: 0, seqno, session: this.core._session };
    const verdict = this.core._delivered(notification);
    if (verdict === "show") this.carryOut(this.hub.notified(notification));
    else if (verdict === "again") this.acknowledged(name, version, seqno);
  }

  acknowledged(name: Name, version: bigint | null, seqno: bigint): void {
    const owed = this.owed.get(keyOf(name, version));
    if (owed?.seqno === seqno && owed.version === version) this.owed.delete(keyOf(name, version));
  }

  redeliver(): void {
    for (const owed of [...this.owed.values()]) this.deliver(owed);
  }

  register(page: Page, name: Name): void {
    if (page.tab.wishes.has(name)) return;
    const held = page.holds.get(name) ?? null;
    const act = this.#random();
    const actions = page.tab.register(name, act < 0.3 ? held : null, 0);
    if (held === null || act > 0.6) page.holds.set(name, this.current.get(name) as bigint); // register, then fetch
    this.do(page, actions);
  }

  /** For a reason of its own. If it has registered, it may say so. */
  fetch(page: Page, name: Name): void {
    const version = this.current.get(name) as bigint;
    page.holds.set(name, version);
    if (page.tab.wishes.has(name) && this.#random() < 0.8) this.do(page, page.tab.register(name, version, 0));
  }

  unregister(page: Page, name: Name, forget: boolean): void {
    if (forget) page.holds.delete(name);
    this.do(page, page.tab.unregister(name, forget));
  }

  work(page: Page, well: boolean): void {
    const notification = page.atWork.shift();
    if (!notification) return;
    if (well) page.holds.set(notification.name, this.current.get(notification.name) as bigint);
    this.do(page, well ? page.tab.acknowledge(notification) : page.tab.giveBack(this.nowS, notification));
  }

  close(page: Page): void {
    this.pages.splice(this.pages.indexOf(page), 1);
    if (this.hub) this.carryOut(this.hub.gone(this.id(page)));
  }

  /** Some of what it said reaches the leader. */
  carry(page: Page): void {
    if (this.hub && page.term !== this.term) this.hear(page);
    const said = page.sent.splice(0, 1 + Math.floor(this.#random() * 4));
    for (const message of said) if (this.hub) this.carryOut(this.hub.said(this.id(page), message));
  }

  readonly #ids = new Map<Page, string>();
  id(page: Page): string {
    if (!this.#ids.has(page)) this.#ids.set(page, `tab-${this.#ids.size}`);
    return this.#ids.get(page) as string;
  }

  do(page: Page, actions: TabAction[]): void {
    for (const action of actions) {
      if (action.kind === "say" && this.hub && page.term === this.term) page.sent.push(action.message);
      if (action.kind !== "notify") continue;
      this.shown += 1;
      page.atWork.push(action.notification);
    }
  }

  carryOut(actions: HubAction[]): void {
    for (const action of actions) {
      if (action.kind === "post") {
        const page = this.pages.find((one) => this.id(one) === action.to);
        if (page) this.do(page, page.tab.heard(this.nowS, action.message));
      } else if (action.kind === "register") {
        const { name, version } = action.wish;
        this.wished.add(name);
        this.unsent.delete(name);
        this.core._registered(name, version === null ? null : { version, epoch: 0 }, false);
        this.registerAt(name, version);
      } else if (action.kind === "unregister") {
        this.wished.delete(action.name);
        this.unsent.add(action.name);
        this.core._unregistered(action.name, action.forget);
        if (this.#random() < 0.3) this.send();
      } else if (action.kind === "acknowledge") {
        for (const { seqno, version } of this.core._acknowledged(action.notification)) {
          this.acknowledged(action.notification.name, version === undefined ? null : BigInt(version), BigInt(seqno));
        }
      }
    }
  }

  /** What the session has not told the service yet. */
  send(): void {
    for (const name of this.unsent) this.forgetAt(name);
    this.unsent.clear();
  }

  /** One that is registered already stays as it is. */
  registerAt(name: Name, held: bigint | null): void {
    if (!this.registered.has(name)) {
      this.registered.add(name);
      const known = this.known.get(name) ?? null;
      if (known === null || held === null || known > held) this.owe(name, known);
    }
    if (this.hub) this.carryOut(this.hub.status({ kind: "status", name, registered: true }));
  }

  forgetAt(name: Name): void {
    this.registered.delete(name);
    for (const key of ["?", "="]) this.owed.delete(key + name);
  }

  /** No more changes; everybody carries on until nothing is left to do. */
  settle(): void {
    if (!this.hub) this.reign();
    for (let round = 0; round < 12; round++) {
      this.nowS += 100;
      for (const page of this.pages) {
        do this.carry(page);
        while (page.sent.length > 0);
        this.do(page, page.tab.tick(this.nowS));
        while (page.atWork.length > 0) this.work(page, true);
      }
      this.send();
      this.redeliver();
    }
  }
}

test(`${SEEDS} stories of tabs: whoever registered holds what is current, and the service is owed nothing`, () => {
  let shown = 0;
  for (let seed = 0; seed < SEEDS; seed++) {
    const world = new World(seed);
    world.open();
    world.open();
    world.reign();
    for (let step = 0; step < STEPS_MIN + (seed % STEPS_MORE); step++) world.step();
    world.settle();
    for (const page of world.pages) {
      for (const name of page.tab.wishes.keys()) {
        assert.equal(page.holds.get(name), world.current.get(name), `seed ${seed}: ${world.id(page)} holds an old ${name}`);
      }
    }
    assert.deepEqual([...world.owed], [], `seed ${seed}`);
    const wished = new Set(world.pages.flatMap((page) => [...page.tab.wishes.keys()]));
    assert.deepEqual([...world.registered].sort(), [...wished].sort(), `seed ${seed}`);
    shown += world.shown;
  }
  assert.ok(shown > 3 * SEEDS, `only ${shown}`);
});
