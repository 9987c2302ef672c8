/** A user signs out: nothing of what a client's caches held is left, in whatever store, of whatever tab. */

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { LiveCache, MemoryStore } from "../src/livecache.ts";
import { SqliteStore } from "../src/stores/sqlite-cache.ts";
import { Scene, storing } from "./scene.ts";

const names = (store: MemoryStore): string[] => [...store.entries.keys()];

/** With its caches taken along. */
const signOut = (scene: Scene): Promise<void> => scene.service.run(scene.client.forget());

test("signing out ends the cache and empties its store, of what was there before, too", async () => {
  const store = new MemoryStore({ durable: true });
  const scene = storing(store);
  scene.write("a");
  await scene.get("a");
  await scene.wait();
  await scene.end();
  assert.deepEqual(names(store), ["a"]);
  const { state, service, fetches } = scene;
  const next = storing(store, { scene: { state, service, fetches } });
  await next.get("b");
  assert.deepEqual(names(store), ["a", "b"]);
  await signOut(next);
  assert.deepEqual(names(store), []);
  assert.equal(next.cache.peek("b"), undefined);
  await assert.rejects(next.cache.get("b"), { code: "client-stopped" });
  assert.deepEqual(next.warnings, []);
  await service.close();
});

test("the store of a cache that was closed before is emptied, too; a cache without a store is not kept for it", async () => {
  const store = new MemoryStore({ durable: true });
  const scene = storing(store);
  await scene.get("a");
  await scene.cache.close();
  const without = new LiveCache(scene.client, () => "value");
  await without.close();
  assert.deepEqual(names(store), ["a"]);
  await signOut(scene);
  assert.deepEqual(names(store), []);
  await scene.service.close();
});

test("a store that cannot be emptied is said, after all else was done", async () => {
  const [stuck, other] = [new MemoryStore({ durable: true }), new MemoryStore({ durable: true })];
  const scene = storing(stuck);
  const second = new LiveCache(scene.client, () => "value", { store: other });
  await scene.get("a");
  await scene.service.run(second.get("b"));
  stuck.load = () => Promise.reject(new Error("no such disk"));
  await assert.rejects(signOut(scene), /no such disk/);
  assert.deepEqual(names(other), []);
  assert.equal(scene.state.read(), null);
  await assert.rejects(scene.client.synced(), { code: "client-stopped" });
  await scene.service.close();
});

test("a client that is closed was not signed out: its store stays", async () => {
  const store = new MemoryStore({ durable: true });
  const scene = storing(store);
  await scene.get("a");
  await scene.client.close();
  assert.deepEqual(names(store), ["a"]);
  await scene.cache.close();
  await scene.service.close();
});

test("in a file nothing of the values is left", async () => {
  const folder = mkdtempSync(join(tmpdir(), "roskva-"));
  const path = join(folder, "cache.db");
  const scene = storing(new SqliteStore(path));
  await scene.get("secret");
  await scene.wait();
  assert.ok(readFileSync(path).includes("secret@0"));
  await signOut(scene);
  assert.ok(!readFileSync(path).includes("secret"));
  await scene.service.close();
  rmSync(folder, { recursive: true });
});
