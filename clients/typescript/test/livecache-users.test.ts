/** A LiveCache whose user may not have what it holds, or not any more; as tests/client/test_livecache_users.py. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { LiveCache, type LiveCacheOptions, MemoryStore, NotAuthorized } from "../src/livecache.ts";
import { Door, ready } from "./door.ts";

interface Scene {
  readonly door: Door;
  readonly cache: LiveCache<string>;
  readonly fetched: string[];
  readonly warned: string[];
}

async function scene(options: LiveCacheOptions = {}): Promise<Scene> {
  const door = new Door();
  const client = door.client({ credential: "good" });
  const fetched: string[] = [];
  const warned: string[] = [];
  const fetch = async (id: string): Promise<string> => (fetched.push(id), `value of ${id}`);
  const cache = new LiveCache<string>(client, fetch, { warn: (message) => void warned.push(message), ...options });
  await ready(door, client);
  await cache.get("a");
  await door.clock.until(() => cache.state("a").state === "fresh", 60);
  return { door, cache, fetched, warned };
}

async function kept(store: MemoryStore): Promise<string[]> {
  return (await store.load()).map(({ name }) => name);
}

test("what the user may not have any more is held no longer, neither in memory nor in the store, and `get` says why", async () => {
  const store = new MemoryStore();
  const { door, cache, fetched, warned } = await scene({ store });
  assert.deepEqual(await kept(store), ["a"]);
  door.revoke("a");
  await door.clock.settled();
  assert.deepEqual([cache.peek("a"), cache.has("a"), cache.state("a").state], [undefined, false, "unknown"]);
  assert.deepEqual(await kept(store), []);
  await assert.rejects(cache.get("a"), (error) => error instanceof NotAuthorized && error.code === "not-authorized");
  assert.deepEqual(warned, ["a is not registered"]);
  const before = fetched.length;
  await door.clock.advance(59);
  await assert.rejects(cache.get("a"), NotAuthorized);
  assert.equal(fetched.length, before, "nothing is fetched for who may not have it");
  await door.clock.advance(2);
  assert.equal(await cache.get("a"), "value of a"); // it is tried again
  await cache.close();
});

test("who waits for a fetch while the registration is revoked gets nothing; what is discarded is tried again", async () => {
  const door = new Door();
  const client = door.client({ credential: "good" });
  let takesS = 0;
  const fetch = (id: string): Promise<string> => new Promise((done) => void door.clock.after(takesS, () => done(`value of ${id}`)));
  const cache = new LiveCache<string>(client, fetch, { warn: () => {} });
  await ready(door, client);
  await cache.get("a");
  await door.clock.until(() => cache.state("a").state === "fresh", 60);
  takesS = 5;
  cache.invalidate("a");
  const asked = assert.rejects(cache.get("a"), NotAuthorized);
  await door.clock.advance(1);
  door.revoke("a");
  await door.clock.advance(10);
  await asked;
  assert.equal(cache.peek("a"), undefined);
  takesS = 0;
  await cache.discard("a"); // the application knows better
  assert.equal(await cache.get("a"), "value of a");
  await cache.close();
});

test("what is refused for another reason is cached by time, and not kept", async () => {
  const store = new MemoryStore();
  const { door, cache } = await scene({ store });
  door.revoke("a", "too-many-registrations");
  await door.clock.settled();
  assert.equal(cache.peek("a"), "value of a");
  assert.deepEqual(await kept(store), []);
  assert.notEqual(cache.state("a").state, "fresh");
  assert.equal(await cache.get("a"), "value of a");
  await cache.close();
});

test("while the service wants a credential nothing is fresh", async () => {
  const { door, cache } = await scene();
  door.users = {};
  door.wants("credential-expired");
  await door.clock.advance(0.1);
  assert.equal(cache.state("a").state, "unknown");
  await cache.close();
});
