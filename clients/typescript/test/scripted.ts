/**
 * A client's core under a clock that the test moves, and a server that says what the test tells it to say (as tests/client/scripted.py).
 */

import assert from "node:assert/strict";
import { type Action, type Notification } from "../src/core/actions.ts";
import { ClientCore } from "../src/core/index.ts";
import { type ClientMessage, type Config, decodeServer, encode, type Sync } from "../src/core/messages.ts";
import { type Name, nameFromText } from "../src/core/model.ts";
import { hashOf, SetDigest } from "../src/core/summaries.ts";

export const CONFIG = { heartbeat_s: 1200, keepalive_s: 50, retry_min_s: 1, retry_max_s: 60 };
const ROUNDS_MAX = 10_000;

export interface Status {
  readonly object: string;
  readonly state: string;
  readonly transient?: boolean;
  readonly code?: string;
  readonly message?: string;
}

export interface BenchOptions {
  readonly state?: string | null;
  readonly config?: Partial<Config>;
  readonly dice?: number;
}

export function digestOfAll(names: Iterable<Name>): SetDigest {
  const digest = new SetDigest();
  for (const name of names) digest._change(hashOf(name));
  return digest;
}

/** `said` holds the messages that the client sent and the test has not looked at; `actions` everything else. */
export class Bench {
  nowS = 100;
  token = "token-1";
  has = new Set<Name>(); // what the scripted server has
  unsettled = 0;
  said: ClientMessage[] = [];
  actions: Action[] = [];
  readonly core: ClientCore;
  #spokeS = 100; // when the server last said something by itself
  #nonces = 0;

  constructor({ state = null, config = CONFIG, dice = 0.5 }: BenchOptions = {}) {
    this.core = new ClientCore("demo", "phone", { random: () => dice, nonce: () => `nonce-${++this.#nonces}`, state, config });
  }

  do(actions: Action[]): Action[] {
    for (const action of actions) {
      if (action.kind === "send") this.said.push(JSON.parse(encode(action.message)));
      else this.actions.push(action);
    }
    return actions;
  }

  start(): void {
    this.do(this.core.start(this.nowS));
    this.do(this.core.connected(this.nowS));
  }

  /** A message of the server, with token and summary unless given otherwise. */
  say(fields: object = {}): Action[] {
    const given = { token: this.token, summary: digestOfAll(this.has)._summary(), unsettled: this.unsettled, ...fields };
    return this.do(this.core.received(this.nowS, decodeServer(JSON.stringify(given))));
  }

  /** Answer the last init that the client sent. */
  grant(token = "token-1", fields: object = {}): Action[] {
    const nonce = this.said.filter((message) => message.init !== undefined).at(-1)?.init?.nonce;
    assert.ok(nonce, "the client waits for no grant");
    this.token = token;
    return this.say({ grant: { nonce, token }, ...fields });
  }

  /** Started, granted, quiet: nothing waits to be looked at. */
  live(): this {
    this.start();
    this.grant();
    this.forget();
    return this;
  }

  forget(): void {
    this.said = [];
    this.actions = [];
  }

  register(...names: string[]): void {
    for (const name of names) this.do(this.core.register(this.nowS, nameFromText(name)));
  }

  unregister(name: string, forget = false): void {
    this.do(this.core.unregister(this.nowS, nameFromText(name), forget));
  }

  /** Wish for these, and have the server confirm them. */
  registered(...names: string[]): this {
    this.register(...names);
    this.serverHas(...this.has, ...names);
    this.say({ status: names.map((name) => status(name)) });
    this.forget();
    return this;
  }

  serverHas(...names: string[]): void {
    this.has = new Set(names.map(nameFromText));
  }

  notify(object: string, version: bigint | null, seqno = 1, epoch = 0): Action[] {
    return this.say({ notify: [{ object, seqno: String(seqno), epoch, ...(version === null ? {} : { version: String(version) }) }] });
  }

  acknowledge(...notifications: Notification[]): void {
    this.do(this.core.acknowledge(this.nowS, notifications));
  }

  anew(code = "token-invalid", keep = false, fields: { token?: string; nonce?: string } = {}): Action[] {
    const { token = this.token, ...more } = fields;
    return this.say({ token, summary: null, start_anew: { code, keep, ...more } });
  }

  reconnect(): void {
    this.do(this.core.disconnected());
    this.do(this.core.connected(this.nowS));
  }

  /** Let time go by, with a tick at each deadline and, unless told otherwise, the server's keepalives. */
  passTime(seconds: number, keepalives = true): void {
    const end = this.nowS + seconds;
    for (let round = 0; ; round++) {
      assert.ok(round < ROUNDS_MAX, "the core wants to be called without end");
      const deadline = this.core.nextDeadline();
      const keepalive = keepalives ? Math.max(this.nowS, this.#spokeS + 40) : end + 1;
      const step = Math.min(end, keepalive, deadline === null ? end : Math.max(deadline, this.nowS));
      if (step >= end && keepalive > end && (deadline === null || deadline > end)) break;
      this.nowS = step;
      if (step === keepalive) {
        this.#spokeS = step;
        this.say();
      }
      this.do(this.core.tick(this.nowS));
    }
    this.nowS = end;
  }

  takeSaid(): ClientMessage[] {
    const said = this.said;
    this.said = [];
    return said;
  }

  /** All that the application was shown. */
  get shown(): Notification[] {
    return this.actions.flatMap((action) => (action.kind === "notify" ? [action.notification] : []));
  }

  get statuses(): [string, boolean][] {
    const told = this.actions.filter((action) => action.kind === "statusChanged");
    return told.map((action) => [action.name, action.registered]);
  }

  count(kind: Action["kind"]): number {
    return this.actions.filter((action) => action.kind === kind).length;
  }
}

export function status(object: string, state = "registered", more: Partial<Status> = {}): Status {
  return { object, state, ...more };
}

/** [number, object, is it a registration], in the order sent. */
export function operations(said: ClientMessage[]): [number, string, boolean][] {
  return said.flatMap(({ register = [], unregister = [] }) => [
    ...register.map((one): [number, string, boolean] => [one.op, one.object, true]),
    ...unregister.map((one): [number, string, boolean] => [one.op, one.object, false]),
  ]);
}

export function syncs(said: ClientMessage[]): Sync[] {
  return said.flatMap((message) => (message.sync === undefined ? [] : [message.sync]));
}

/** Each as object, seqno, version, epoch. */
export function acks(said: ClientMessage[]): [string, string, string | undefined, number][] {
  const all = said.flatMap((message) => message.acks ?? []);
  return all.map((ack) => [ack.object, ack.seqno, ack.version, ack.epoch ?? 0]);
}

export function names(count: number): string[] {
  return Array.from({ length: count }, (_, number) => `object-${number}`);
}

/** The only one of them. */
export function only<T>(all: readonly T[]): T {
  assert.equal(all.length, 1);
  return all[0] as T;
}
