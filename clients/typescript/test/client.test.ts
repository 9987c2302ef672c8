/** `Client` over a service in memory and a clock moved by hand: handlers, loops, events, signals, waking, ending. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { Channel } from "../src/channels/channel.ts";
import { Client, type ClientEvents } from "../src/client.ts";
import { InvalidName, InvalidVersion, RoskvaError } from "../src/core/errors.ts";
import { InvalidSetting, ServiceUnreachable } from "../src/errors.ts";
import type { Notification } from "../src/registrations.ts";
import { Session } from "../src/session.ts";
import { MemoryState } from "../src/stores/memory.ts";
import { HandClock, Service } from "../src/testing/index.ts";

function record(client: Client): string[] {
  const seen: string[] = [];
  const types: (keyof ClientEvents)[] = ["connected", "disconnected", "insync", "outofsync", "registered", "unregistered", "failed"];
  for (const type of [...types, "reissue", "error", "stopped"] as (keyof ClientEvents)[]) {
    client.addEventListener(type, ({ detail }) => {
      const { name } = (detail ?? {}) as { name?: string };
      seen.push(name === undefined ? type : `${type} ${name}`);
    });
  }
  return seen;
}

test("a handler is called with versions, one at a time, and its return acknowledges", async () => {
  const service = new Service();
  const client = service.client("shop");
  const seen: (bigint | null)[] = [];
  let finish = (): void => {};
  await client.register("a", ({ version }) => {
    seen.push(version);
    return new Promise<void>((done) => (finish = done));
  });
  await service.settled();
  assert.deepEqual(seen, [null]); // no version was known at the registration
  service.publish("shop", "a", 2);
  service.publish("shop", "a", 3);
  await service.settled();
  assert.deepEqual(seen, [null]);
  finish();
  await service.settled();
  assert.deepEqual(seen, [null, 3n]); // the latest takes the place of those that waited
  assert.equal(service.unacknowledged("shop"), 1);
  finish();
  await service.settled();
  assert.equal(service.unacknowledged("shop"), 0);
  await service.close();
});

test("what a handler fails on comes again, and the failure is told", async () => {
  const service = new Service();
  service.publish("shop", "a", 1);
  const client = service.client("shop");
  const events = record(client);
  let failures = 2;
  const seen: (bigint | null)[] = [];
  await client.register("a", async ({ version }) => {
    if (failures-- > 0) throw new Error("not now");
    seen.push(version);
  });
  await service.until(() => seen.length > 0);
  assert.deepEqual(seen, [1n]);
  assert.equal(events.filter((event) => event === "error a").length, 2);
  await service.close();
});

test("a manual handler is called at once, and only `acknowledge` acknowledges", async () => {
  const service = new Service();
  service.publish("shop", "a", 1);
  const client = service.client("shop");
  const seen: Notification[] = [];
  await client.register("a", (told) => void seen.push(told), { manual: true });
  await service.settled();
  service.publish("shop", "a", 2);
  await service.settled();
  assert.deepEqual(seen.map(({ version }) => version), [1n, 2n]);
  assert.equal(service.unacknowledged("shop"), 1);
  client.acknowledge(seen[1] as Notification);
  await service.settled();
  assert.equal(service.unacknowledged("shop"), 0);
  await service.close();
});

test("a loop acknowledges as it comes back; what it leaves is the next loop's", async () => {
  const service = new Service();
  service.publish("shop", "a", 1);
  service.publish("shop", "b", 1);
  const client = service.client("shop");
  await client.register("a");
  for await (const { name } of client) {
    assert.equal(name, "a");
    break;
  }
  await service.settled();
  assert.equal(service.unacknowledged("shop"), 1);
  await client.register("b");
  const names: string[] = [];
  for await (const { name } of client) {
    names.push(name);
    if (names.length === 2) void client.close();
  }
  assert.deepEqual(names, ["a", "b"]);
  await service.close();
});

test("what is unregistered while it waits is not shown", async () => {
  const service = new Service();
  service.publish("shop", "a", 1);
  service.publish("shop", "b", 1);
  const client = service.client("shop");
  await client.register("a");
  await service.settled();
  await client.unregister("a");
  await client.register("b");
  await service.settled();
  const { value } = await client[Symbol.asyncIterator]().next();
  assert.equal(value.name, "b");
  assert.deepEqual(client.registrations(), ["b"]);
  await service.close();
});

test("events tell of the connection, of each registration, and of the end", async () => {
  const service = new Service();
  service.publish("shop", "a", 1);
  const client = service.client("shop");
  const events = record(client);
  await client.register("a", () => {});
  await service.until(() => client.inSync);
  service.disconnect(client);
  await service.settled();
  assert.equal(client.connected, false);
  service.reconnect(client);
  await service.until(() => client.inSync);
  await client.unregister("a");
  await service.until(() => client.inSync && client.registrations().length === 0);
  await service.run(client.forget());
  const without = ["error"]; // a failed connection: as often as it is tried
  assert.deepEqual(
    events.filter((event) => !without.includes(event)).filter((event, index, all) => event !== all[index - 1]),
    [
      ...["reissue", "connected", "registered a", "insync"],
      ...["disconnected", "outofsync", "connected", "insync"],
      ...["outofsync", "unregistered a", "insync"],
      ...["stopped", "outofsync", "disconnected"],
    ],
  );
  await service.close();
});

test("an aborted signal unregisters, or closes the client", async () => {
  const service = new Service();
  const whole = new AbortController();
  const one = new AbortController();
  const client = service.client("shop", { signal: whole.signal });
  await client.register("a", () => {}, { signal: one.signal });
  await client.register("b", () => {});
  await service.settled();
  one.abort();
  await service.settled();
  assert.deepEqual(client.registrations(), ["b"]);
  assert.deepEqual(service.registered("shop", "a"), []);
  await assert.rejects(client.register("c", null, { signal: one.signal }), { name: "AbortError" });
  whole.abort();
  await service.settled();
  await assert.rejects(client.register("c"), { code: "client-stopped" });
  assert.deepEqual(service.registered("shop", "b"), ["device-1"]); // kept for the next run
  await service.close();
});

test("a signal that is aborted late does not take what another registered since", async () => {
  const service = new Service();
  const early = new AbortController();
  const client = service.client("shop");
  await client.register("a", () => {}, { signal: early.signal });
  await client.unregister("a");
  await client.register("a", () => {});
  early.abort();
  await service.settled();
  assert.deepEqual(client.registrations(), ["a"]);
  await service.close();
});

test("a signal unregisters what it was given for, with and without a handler, and nothing that came after", async () => {
  for (const onNotify of [undefined, () => {}]) {
    const service = new Service();
    const client = service.client("shop", onNotify ? { onNotify } : {});
    const [own, earlier, crossed] = [new AbortController(), new AbortController(), new AbortController()];
    await client.register("own", null, { signal: own.signal });
    await client.register("again", null, { signal: earlier.signal });
    await client.unregister("again");
    await client.register("again");
    await client.register("crossed", null, { signal: crossed.signal });
    await service.advance(5); // told, and in the hands of a handler or a mailbox
    const both = [client.unregister("crossed"), client.register("crossed")];
    for (const one of [own, earlier, crossed]) one.abort();
    await Promise.all(both);
    await service.advance(5);
    assert.deepEqual(client.registrations().sort(), ["again", "crossed"]);
    await service.close();
  }
});

test("a signal is listened to for as long as the registration lasts", async () => {
  const service = new Service();
  const client = service.client("shop");
  const { signal } = new AbortController();
  let listeners = 0;
  const add = signal.addEventListener.bind(signal) as (...given: unknown[]) => void;
  signal.addEventListener = (...given: unknown[]) => {
    listeners += 1;
    (given[2] as { signal: AbortSignal }).signal.addEventListener("abort", () => (listeners -= 1));
    add(...given);
  };
  for (let i = 0; i < 3; i++) {
    await client.register("a", null, { signal });
    await client.unregister("a");
  }
  await client.register("a", null, { signal });
  assert.equal(listeners, 1);
  await service.run(client.close());
  assert.equal(listeners, 0);
  await service.close();
});

test("what a handler never ends with is told to the next one", async () => {
  const service = new Service();
  service.publish("shop", "a", 9);
  const client = service.client("shop");
  const ends: (() => void)[] = [];
  const seen: (bigint | null)[] = [];
  for (const manual of [false, true]) {
    await client.register("a", () => new Promise<void>((done) => ends.push(done)), { manual });
    await service.advance(5);
    await client.unregister("a");
  }
  assert.equal(ends.length, 2);
  await client.register("a", ({ version }) => {
    seen.push(version);
    return new Promise<void>((done) => ends.push(done));
  });
  await service.advance(5);
  assert.deepEqual(seen, [9n]);
  ends[0]?.(); // too late: it is another's
  await service.advance(5);
  assert.equal(service.unacknowledged("shop"), 1);
  ends[2]?.();
  await service.advance(5);
  assert.equal(service.unacknowledged("shop"), 0);
  await service.advance(300);
  assert.deepEqual(seen, [9n]);
  await service.close();
});

test("what waits for a loop is told to the handler that is registered instead", async () => {
  const service = new Service();
  service.publish("shop", "a", 9);
  const client = service.client("shop");
  await client.register("a");
  await service.advance(5);
  await client.unregister("a");
  const seen: (bigint | null)[] = [];
  await client.register("a", ({ version }) => void seen.push(version));
  await service.advance(5);
  assert.deepEqual(seen, [9n]);
  await service.close();
});

test("a handler that unregisters its object has dealt with what it was told", async () => {
  const service = new Service();
  service.publish("shop", "a", 9);
  const client = service.client("shop");
  let calls = 0;
  const once = async (): Promise<void> => {
    calls += 1;
    await client.unregister("a");
  };
  await client.register("a", once);
  await service.advance(5);
  await client.register("a", once);
  await service.advance(5);
  assert.equal(calls, 1);
  await service.close();
});

test("a registration that is released stays, and what comes is the next handler's, at once", async () => {
  const service = new Service();
  service.publish("shop", "a", 1);
  const client = service.client("shop");
  const seen: string[] = [];
  await client.register("a", ({ version }) => void seen.push(`first ${version}`), { manual: true });
  await service.advance(5);
  service.publish("shop", "a", 2);
  await service.advance(5);
  await client.release("a");
  service.loseVersion("shop", "a");
  await service.advance(5);
  assert.deepEqual([seen, client.registrations(), service.registered("shop", "a").length], [["first 1", "first 2"], ["a"], 1]);
  service.disconnect(client); // nobody has to be asked
  await client.register("a", ({ version }) => void seen.push(`second ${version}`));
  await service.settled();
  assert.deepEqual(seen.slice(2).sort(), ["second 2", "second null"]);
  service.reconnect(client);
  await service.until(() => client.inSync);
  await assert.rejects(client.register("a", () => {}), InvalidSetting);
  await service.close();
});

test("a start that failed can be repeated", async () => {
  const service = new Service();
  const state = new MemoryState();
  const read = state.read.bind(state);
  state.read = () => {
    throw new InvalidSetting("in use");
  };
  const client = service.client("shop", { state });
  await assert.rejects(client.start(), InvalidSetting);
  await assert.rejects(client.register("a"), InvalidSetting);
  state.read = read;
  await client.register("a", () => {});
  await service.until(() => client.inSync);
  await service.close();
});

test("a client whose signal is aborted at its birth has nothing to loop over", async () => {
  const service = new Service();
  const client = service.client("shop", { signal: AbortSignal.abort() });
  assert.equal((await client[Symbol.asyncIterator]().next()).done, true);
  await service.close();
});

test("nobody asks any more for one whose wait is over", async (t) => {
  const service = new Service();
  const client = service.client("shop");
  await client.start();
  service.stop();
  for (let i = 0; i < 3; i++) await assert.rejects(service.run(client.synced(5_000)), ServiceUnreachable);
  const asked = t.mock.getter(Session.prototype, "_confirmed", () => false);
  await client.register("a"); // something changed
  assert.equal(asked.mock.callCount(), 0);
  await service.close();
});

test("a handler of all objects gets what has none of its own; then there is nothing to loop over", async () => {
  const service = new Service();
  const seen: string[] = [];
  const client = service.client("shop", { onNotify: ({ name }) => void seen.push(`all ${name}`) });
  await client.register("a");
  await client.register("b", ({ name }) => void seen.push(`own ${name}`));
  await service.until(() => client.inSync);
  assert.deepEqual(seen.sort(), ["all a", "own b"]);
  assert.throws(() => client[Symbol.asyncIterator](), InvalidSetting);
  await service.close();
});

test("a loop ends when the client is closed, and fails when the client stopped by itself", async () => {
  const service = new Service();
  const [closed, stopped] = [service.client("shop"), service.client("shop")];
  const loops = [closed, stopped].map((client) => client[Symbol.asyncIterator]().next());
  await service.settled();
  await service.run(closed.close());
  assert.equal((await loops[0])?.done, true);
  const failing = assert.rejects(loops[1] as Promise<unknown>, { code: "client-stopped" });
  void stopped.forget().catch(() => {});
  await service.run(failing);
  await service.close();
});

test("forget deletes the client at the service and its state here, and ends it", async () => {
  const service = new Service();
  const state = new MemoryState();
  const client = service.client("shop", { state });
  await client.register("a", () => {});
  await service.until(() => client.inSync);
  assert.notEqual(state.read(), null);
  await service.run(client.forget());
  assert.equal(state.read(), null);
  assert.deepEqual(service.registered("shop", "a"), []);
  await assert.rejects(client.register("a"), { code: "client-stopped" });
  await service.close();
});

test("forget without a service fails, and leaves no state", async () => {
  const service = new Service();
  const state = new MemoryState();
  const client = service.client("shop", { state });
  await client.register("a", () => {});
  await service.until(() => client.inSync);
  service.stop();
  await assert.rejects(service.run(client.forget(5_000)), ServiceUnreachable);
  assert.equal(state.read(), null);
  await service.close();
});

test("a state that cannot be deleted does not keep the client running", async () => {
  const service = new Service();
  const state = new MemoryState();
  const client = service.client("shop", { state });
  await client.register("a", () => {});
  await service.until(() => client.inSync);
  state.delete = () => {
    throw new Error("read-only");
  };
  await assert.rejects(service.run(client.forget()), /read-only/);
  assert.equal(client.connected, false);
  await assert.rejects(client.synced(), { code: "client-stopped" });
  assert.equal((await client[Symbol.asyncIterator]().next()).done, true);
  await service.close();
});

test("synced waits for the service, in vain if there is none", async () => {
  const service = new Service();
  const client = service.client("shop");
  await client.register("a");
  await service.run(client.synced(5_000));
  service.stop();
  await service.settled();
  await assert.rejects(service.run(client.synced(5_000)), ServiceUnreachable);
  await service.close();
});

test("toldUntil: null before the confirmation, now while all is well, then the last time that it was", async () => {
  const service = new Service();
  const client = service.client("shop");
  await client.start();
  assert.equal(client.toldUntil("a"), null);
  await client.register("a", () => {});
  assert.equal(client.toldUntil("a"), null);
  await service.until(() => client.inSync);
  await service.advance(5);
  assert.equal(client.toldUntil("a"), client.now());
  service.disconnect(client);
  await service.settled();
  const until = client.toldUntil("a") as number;
  await service.advance(30);
  assert.equal(client.toldUntil("a"), until);
  assert.ok(until < client.now() - 29);
  service.reconnect(client);
  await service.until(() => client.toldUntil("a") === client.now());
  await service.close();
});

test("bad input is refused by name", async () => {
  const service = new Service();
  const client = service.client("shop");
  await assert.rejects(client.register(""), InvalidName);
  for (const version of [-1, 1.5, 2 ** 53 + 4, 2 ** 64, -1n]) await assert.rejects(client.register("a", null, { version }), InvalidVersion);
  await assert.rejects(client.register("a", null, { version: 1, epoch: -1 }), InvalidVersion);
  for (const [version, said] of [["7", /^"7" is not a version/], [null, /^null is not a version/]] as const) {
    await assert.rejects(client.register("a", null, { version: version as unknown as bigint }), { code: "invalid-version", message: said });
  }
  await client.register("a", () => {});
  await assert.rejects(client.register("a", () => {}), InvalidSetting);
  assert.throws(() => new Client("ftp://here", { application: "shop" }), InvalidSetting);
  assert.throws(() => new Client("nowhere", { application: "shop" }), InvalidSetting);
  assert.throws(() => new Client("http://x", { application: "SHOP" }), RoskvaError);
  assert.throws(() => new Client("http://x", { application: "shop", channel: "pigeon" as "auto" }), InvalidSetting);
  await service.close();
});

test("an interval that the service would not take is refused before anything is done", async () => {
  const service = new Service();
  const client = service.client("shop");
  let started = false;
  client.addEventListener("reissue", () => (started = true));
  for (const wrong of [1.5, -1, 3_600_001, NaN, Infinity, true, null, "500", [500], 500n]) {
    const refused = client.register("a", () => {}, { notifyIntervalMs: wrong as number });
    await assert.rejects(refused, (error) => {
      assert.ok(error instanceof InvalidSetting);
      const given = typeof wrong === "string" ? JSON.stringify(wrong) : String(wrong);
      assert.equal(error.message, `notifyIntervalMs: ${given} is not a whole number from 0 to 3600000.`);
      return true;
    });
  }
  await assert.rejects(client.register("a", null, { notifyIntervalMs: "9".repeat(1_000) as unknown as number }), ({ message }) => message.length < 200);
  assert.equal(started, false);
  for (const notifyIntervalMs of [0, 1, 3_600_000]) await client.register("a", null, { notifyIntervalMs });
  await client.register("b", null);
  assert.deepEqual([client.registrations(), started], [["a", "b"], true]);
  await service.close();
});

test("a state of another device or application is refused; a damaged one is a new client", async () => {
  const state = new MemoryState();
  state.write('{"v":1,"application":"shop","device":"phone","token":""}');
  const service = new Service();
  await assert.rejects(service.client("shop", { state, device: "tablet" }).start(), InvalidSetting);
  await assert.rejects(service.client("other", { state, device: "phone" }).start(), InvalidSetting);
  state.write("{");
  const client = service.client("shop", { state, device: "phone" });
  const events = record(client);
  await client.register("a", () => {});
  await service.until(() => client.inSync);
  assert.deepEqual(events.slice(0, 1), ["error"]);
  await service.close();
});

/** Keeps what the client says, and answers only what the test says. */
class Scripted extends Channel {
  readonly said: { token?: string; init?: { nonce: string }; info?: object }[] = [];
  ends = 0;

  send(data: string): void {
    this.said.push(JSON.parse(data));
  }

  override ended(): void {
    this.ends += 1;
  }

  say(fields: object): void {
    this.received(JSON.stringify({ summary: { count: 0, digest: "0".repeat(32) }, ...fields }));
  }

  grant(token: string): void {
    const nonce = this.said.filter(({ init }) => init).at(-1)?.init?.nonce;
    this.say({ token, grant: { nonce, token } });
  }
}

test("the state is written before the token is used, however long that takes", async () => {
  const clock = new HandClock();
  const channel = new Scripted();
  let written = (): void => {};
  let state = "";
  const write = (text: string): Promise<void> => new Promise((done) => ((state = text), (written = done)));
  const store = { read: () => null, delete: () => {}, write };
  const client = new Client("", { application: "shop", channel, clock, state: store, tabs: false });
  const starting = client.start();
  await clock.settled();
  written();
  await starting;
  await clock.settled();
  assert.deepEqual(channel.said[0]?.info, { library: "roskva-typescript/1", channel: "carried" });
  channel.grant("t1");
  await clock.settled();
  assert.match(state, /"token":"t1"/);
  assert.deepEqual(channel.said.filter(({ token }) => token), []);
  written();
  await clock.settled();
  assert.deepEqual(channel.said.filter(({ token }) => token).length, 1);
  await client.close();
  assert.equal(channel.ends, 1);
});

test("on a wake the client speaks soon, and begins again if nobody answers", async () => {
  const clock = new HandClock();
  const channel = new Scripted();
  const wakes = new EventTarget();
  const { addEventListener } = globalThis as { addEventListener?: unknown };
  Object.assign(globalThis, { addEventListener: wakes.addEventListener.bind(wakes) });
  try {
    const client = new Client("", { application: "shop", channel, clock, tabs: false });
    await client.start();
    await clock.settled();
    channel.grant("t1");
    await clock.advance(20);
    assert.equal(client.inSync, true);
    channel.said.length = 0;
    wakes.dispatchEvent(new Event("online"));
    wakes.dispatchEvent(new Event("online")); // one wake, several signs
    channel.say({ token: "t1" }); // it lay in the buffers of the connection, and is no answer
    await clock.settled();
    assert.equal(client.inSync, false);
    await clock.advance(0.2);
    assert.equal(channel.said.length, 1);
    assert.equal(client.inSync, false); // until there is an answer
    channel.say({ token: "t1" });
    await clock.advance(11);
    assert.deepEqual([client.inSync, channel.ends], [true, 0]);
    wakes.dispatchEvent(new Event("online"));
    channel.say({ token: "t1" });
    await clock.advance(11);
    assert.equal(channel.ends, 1);
    await clock.advance(2);
    assert.equal(client.connected, true);
    wakes.dispatchEvent(new Event("pagehide")); // says goodbye, as no one may come back
    await clock.settled();
    assert.deepEqual([client.connected, channel.ends], [false, 2]);
    await client.close();
  } finally {
    Object.assign(globalThis, { addEventListener });
  }
});

test("a wake ends the pause before the next attempt", async () => {
  const clock = new HandClock();
  class Down extends Scripted {
    override send(): void {
      throw new Error("no way");
    }
  }
  const channel = new Down();
  const wakes = new EventTarget();
  const { addEventListener } = globalThis as { addEventListener?: unknown };
  Object.assign(globalThis, { addEventListener: wakes.addEventListener.bind(wakes) });
  try {
    const config = { connect_min_s: 1_000, connect_max_s: 1_000 };
    const client = new Client("", { application: "shop", channel, clock, config, tabs: false });
    await client.start();
    await clock.settled();
    const ends = channel.ends;
    await clock.advance(100);
    assert.equal(channel.ends, ends);
    wakes.dispatchEvent(new Event("online"));
    await clock.settled();
    assert.equal(channel.ends, ends + 1);
    await client.close();
  } finally {
    Object.assign(globalThis, { addEventListener });
  }
});

test("a client that is about to connect is closed at once", async () => {
  class Nowhere {
    onopen = null;
    onmessage = null;
    onerror = null;
    onclose = null;
    send(): void {}
    close(): void {}
  }
  const clock = new HandClock();
  const client = new Client("http://127.0.0.1:9", { application: "shop", WebSocket: Nowhere, channel: "websocket", clock, tabs: false });
  await client.start();
  assert.equal(client.connected, false);
  await client.close();
  await assert.rejects(client.synced(), { code: "client-stopped" });
});

test("where the platform has no WebSocket, as in Node 20, a client polls by itself", async () => {
  const { WebSocket: ours, fetch: real } = globalThis;
  const asked: string[] = [];
  Reflect.deleteProperty(globalThis, "WebSocket");
  globalThis.fetch = (async (url: string, { method = "GET" }: RequestInit = {}) => {
    asked.push(`${method} ${url}`);
    return new Response(url.endsWith("/channels") ? '{"id":"c1"}' : null, { status: url.endsWith("/channels") ? 201 : 410 });
  }) as typeof fetch;
  try {
    const client = new Client("http://x", { application: "shop", state: new MemoryState() });
    await client.start();
    await new Promise((done) => client.addEventListener("connected", done));
    assert.equal(client.channel, "long-poll");
    assert.equal(asked[0], "POST http://x/v1/channels");
    assert.throws(() => new Client("http://x", { application: "shop", channel: "websocket" }), InvalidSetting);
    await client.close();
  } finally {
    Object.assign(globalThis, { WebSocket: ours, fetch: real });
  }
});
