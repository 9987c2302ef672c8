/**
 * What a client does while that part of it which is loaded later (src/later.ts) cannot be loaded: all that the promise asks for, be it for
 * ever, since some browsers remember a failed `import()` for the life of a page; and the rest as soon as it is there. Here a module that is
 * not to be had is one that does not resolve, and nothing is remembered but by `missing`.
 */

import assert from "node:assert/strict";
import { registerHooks } from "node:module";
import { beforeEach, test, type TestContext } from "node:test";
import { Channel } from "../src/channels/channel.ts";
import { Client } from "../src/client.ts";
import { systemClock } from "../src/clock.ts";
import { nameFromText } from "../src/core/model.ts";
import type { Notification } from "../src/registrations.ts";
import { Session } from "../src/session.ts";
import type { Told } from "../src/source.ts";
import { MemoryState } from "../src/stores/memory.ts";
import { Service } from "../src/testing/index.ts";

let missing: string[] = [];
let tries = 0;
registerHooks({
  resolve(specifier, context, next) {
    const file = specifier.split("/").at(-1) as string;
    if (file === "later.ts") tries += 1;
    if (missing.includes(file)) throw new Error("the page's server is gone");
    return next(specifier, context);
  },
});
beforeEach(() => {
  missing = ["later.ts"];
  tries = 0;
});

test("it registers, is told and acknowledges, and connects again; then it is whole", async () => {
  const service = new Service();
  const client = service.client("shop");
  const seen: (bigint | null)[] = [];
  await client.register("doc", ({ version }) => void seen.push(version));
  await service.until(() => client.inSync);
  service.publish("shop", "doc", 1);
  await service.advance(1);
  service.disconnect(client);
  service.publish("shop", "doc", 2);
  await service.advance(60);
  service.reconnect(client);
  await service.until(() => client.inSync);
  assert.deepEqual([seen.at(-1), service.unacknowledged("shop"), client.toldUntil("doc")], [2n, 0, null]);
  assert.ok(tries >= 2, "it is tried again");

  missing = [];
  await service.advance(100);
  service.publish("shop", "doc", 3);
  await service.advance(1);
  assert.deepEqual([seen.at(-1), client.toldUntil("doc")], [3n, client.now()]);
  await service.close();
});

for (const [count, how] of [[1, "one object"], [300, "many"], [40, "more than one message holds"]] as const) {
  test(`told to start anew, it comes back in sync though nothing can be loaded any more: ${how}`, async () => {
    const service = new Service({ config: { operations_per_message_max: count === 40 ? 30 : 1000 } });
    const client = service.client("shop");
    const seen = new Map<string, bigint | null>();
    const ids = Array.from({ length: count }, (_, number) => `doc-${number}`);
    for (const id of ids) await client.register(id, ({ name, version }) => void seen.set(name, version));
    await service.until(() => client.inSync);
    for (const lose of [() => service.dropEverything(), () => service.collect(client)]) {
      lose();
      await service.advance(200);
      await service.until(() => client.inSync);
    }
    for (const id of ids) service.publish("shop", id, 7);
    await service.advance(5);
    assert.deepEqual([...seen], ids.map((id) => [id, 7n]));
    assert.equal(client.toldUntil("doc-0"), null, "nothing was loaded");
    await service.close();
  });
}

test("a registration that is refused for good is told, and does not keep the others out of sync", async () => {
  const service = new Service({ config: { registrations_max: 1 } });
  const client = service.client("shop");
  const refused: string[] = [];
  client.addEventListener("failed", ({ detail }) => void refused.push(detail.name));
  await client.register("one", () => {});
  await service.until(() => client.inSync);
  await client.register("two", () => {});
  await service.until(() => client.inSync);
  assert.deepEqual([refused, client.registrations()], [["two"], ["one"]]);
  await service.close();
});

test("who signs out leaves nothing behind here, and hears that the service does not know", async () => {
  const service = new Service();
  const state = new MemoryState();
  const client = service.client("shop", { state });
  await client.register("doc");
  await service.run(client.synced());
  assert.notEqual(state.read(), null);
  await assert.rejects(service.run(client.forget(1_000)), { name: "TimeoutError" });
  assert.equal(state.read(), null);
  await assert.rejects(client.register("doc"), { code: "client-stopped" });
  await service.close();
});

test("a loop says that it cannot be loaded, and takes nothing; the next one gets it all", async () => {
  const service = new Service();
  const client = service.client("shop");
  service.publish("shop", "doc", 1);
  await client.register("doc");
  await service.run(client.synced());
  await assert.rejects(client[Symbol.asyncIterator]().next(), /the page's server is gone/);
  missing = [];
  const { value } = await service.run(client[Symbol.asyncIterator]().next());
  assert.equal((value as Notification).version, 1n);
  await service.close();
});

/** A service that agrees with everything, and says nothing unasked. */
class Agreeing extends Channel {
  send(data: string): void {
    const { init, summary, register = [] } = JSON.parse(data);
    const status = register.map(({ object }: { object: string }) => ({ object, state: "registered" }));
    const grant = init && { nonce: init.nonce, token: "t" };
    queueMicrotask(() => this.says({ summary, status, grant }));
  }

  says(message: object): void {
    this.received(JSON.stringify({ token: "t", ...message }));
  }
}

const DOC = nameFromText("doc");

/** A session with such a service, in sync, and what it tells. */
async function agreed(t: TestContext): Promise<{ channel: Agreeing; session: Session; told: Told[] }> {
  const told: Told[] = [];
  const channel = new Agreeing();
  const about = { _urls: ["x"], channel, _socket: undefined, application: "shop", device: "phone", config: {} };
  const session = new Session({ ...about, state: new MemoryState(), clock: systemClock }, (one) => void told.push(one));
  t.after(() => session.close());
  await session.start();
  session.register(DOC, null, 0);
  await until(() => session.inSync);
  told.length = 0;
  return { channel, session, told };
}

async function until(happened: () => boolean): Promise<void> {
  for (let turn = 0; turn < 2_000 && !happened(); turn++) await new Promise((done) => setTimeout(done, 2));
  assert.ok(happened(), String(happened));
}

test("when it is there, whoever shows how things stand is told to look again", async (t) => {
  const { session, told } = await agreed(t);
  assert.equal(session._toldUntil(DOC), null);
  missing = [];
  await until(() => session._toldUntil(DOC) !== null);
  assert.deepEqual(told.map(({ kind }) => kind), ["changed"]);
});

test("if what tabs share by cannot be loaded, a client goes alone; with a state of the application's own it says so", async (t) => {
  missing = ["shared.ts"];
  const about = { application: "shop", tabs: true };
  const client = new Client("", { ...about, channel: new Agreeing() });
  t.after(() => client.close());
  await client.register("doc");
  await client.synced(5_000);
  const another = new Client("", { ...about, channel: new Agreeing(), state: new MemoryState() });
  t.after(() => another.close());
  await assert.rejects(another.register("doc"), /the page's server is gone/);
});

const WANTED = { credential: { wanted: true, code: "credential-required", message: "who are you?" } };

test("a message that waits for what heeds credentials is taken in if it is still the service's last word, else not", async (t) => {
  const { channel, session, told } = await agreed(t);
  channel.says(WANTED);
  channel.says({ unsettled: 0 }); // meanwhile all is well
  await until(() => session._core.credential !== null);
  await new Promise((done) => setTimeout(done, 10));
  assert.deepEqual([session.inSync, session._core.credential?._wanted, session._credentialProblem], [true, "", ""]);
  assert.ok(told.every(({ kind }) => kind !== "credentialWanted"));

  const { channel: another, session: asked, told: heard } = await agreed(t);
  another.says(WANTED);
  await until(() => heard.some(({ kind }) => kind === "credentialWanted"));
  assert.deepEqual([asked.inSync, asked._credentialProblem], [false, "credential-required"]);
});

test("if what heeds credentials cannot be loaded, the application hears at least that one is wanted", async (t) => {
  missing = ["later.ts", "credentials.ts"];
  const { channel, told } = await agreed(t);
  channel.says(WANTED);
  await until(() => told.some((one) => one.kind === "reported" && one.code === "credential-required"));
});

test("without what chooses, a client goes on to its next address after three failures", async (t) => {
  const tried: string[] = [];
  class Nowhere {
    onopen: unknown;
    onmessage: unknown;
    onerror: unknown;
    onclose: unknown;
    constructor(url: string) {
      tried.push(url);
      queueMicrotask(() => (this.onclose as (event: object) => void)({ code: 1006, wasClean: false }));
    }
    send(): void {}
    close(): void {}
  }
  const about = { _urls: ["http://a", "http://b"], channel: "auto" as const, _socket: Nowhere, application: "shop", device: "phone" };
  const config = { retry_min_s: 0.01, retry_max_s: 0.01 };
  const session = new Session({ ...about, config, state: new MemoryState(), clock: systemClock }, () => {});
  t.after(() => session.close());
  await session.start();
  await until(() => tried.length >= 7);
  const [a, b] = ["ws://a/v1/channel", "ws://b/v1/channel"];
  assert.deepEqual(tried.slice(0, 7), [a, a, a, b, b, b, a]);
});
