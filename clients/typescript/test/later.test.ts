/**
 * What a client does while that part of it which is loaded later (src/later.ts) cannot be loaded: all that a first connection can do, again
 * and again; and the rest as soon as it is there. Here a module that is not to be had is one that does not resolve.
 */

import assert from "node:assert/strict";
import { registerHooks } from "node:module";
import { beforeEach, test } from "node:test";
import { Channel } from "../src/channels/channel.ts";
import { systemClock } from "../src/clock.ts";
import { nameFromText } from "../src/core/model.ts";
import type { Notification } from "../src/registrations.ts";
import { Session } from "../src/session.ts";
import { MemoryState } from "../src/stores/memory.ts";
import { Service } from "../src/testing/index.ts";

let missing = true;
let tries = 0;
registerHooks({
  resolve(specifier, context, next) {
    if (!specifier.endsWith("/later.ts")) return next(specifier, context);
    tries += 1;
    if (missing) throw new Error("the page's server is gone");
    return next(specifier, context);
  },
});
beforeEach(() => {
  missing = true;
  tries = 0;
});

test("it registers, is told and acknowledges, and connects again; then it is whole, and starts anew if it must", async () => {
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

  service.dropEverything(); // to start anew, it needs what is missing: the service's word is as good as lost
  await service.advance(100);
  assert.equal(client.inSync, false);
  missing = false;
  await service.advance(100);
  await service.until(() => client.inSync);
  service.publish("shop", "doc", 3);
  await service.advance(1);
  assert.deepEqual([seen.at(-1), client.toldUntil("doc")], [3n, client.now()]);
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
  missing = false;
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
    queueMicrotask(() => this.received(JSON.stringify({ token: "t", summary, status, grant })));
  }
}

test("when it is there, whoever shows how things stand is told to look again", async (t) => {
  const told: string[] = [];
  const about = { _urls: ["x"], channel: new Agreeing(), _socket: undefined, application: "shop", device: "phone", config: {} };
  const session = new Session({ ...about, state: new MemoryState(), clock: systemClock }, ({ kind }) => void told.push(kind));
  t.after(() => session.close());
  const doc = nameFromText("doc");
  const until = async (happened: () => boolean): Promise<void> => {
    for (let turn = 0; turn < 2_000 && !happened(); turn++) await new Promise((done) => setTimeout(done, 2));
    assert.ok(happened(), String(happened));
  };
  await session.start();
  session.register(doc, null, 0);
  await until(() => session.inSync);
  assert.equal(session._toldUntil(doc), null);
  missing = false;
  told.length = 0;
  await until(() => session._toldUntil(doc) !== null);
  assert.deepEqual(told, ["changed"]);
});
