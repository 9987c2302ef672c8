/** What a LiveCache keeps over a restart, in any store; and what each store must survive. */

import assert from "node:assert/strict";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { after, test } from "node:test";
import { IDBFactory } from "fake-indexeddb";
import { nameFromText } from "../src/core/model.ts";
import { type CacheStore, IndexedDbStore, jsonCodec, type Kept, MemoryStore } from "../src/livecache.ts";
import { SqliteStore } from "../src/stores/sqlite-cache.ts";
import { Scene, storing } from "./scene.ts";

const folder = mkdtempSync(join(tmpdir(), "roskva-"));
after(() => rmSync(folder, { recursive: true }));
let files = 0;
const file = (): string => join(folder, `cache-${++files}.db`);

/** Web Locks of one browser, as far as the store asks for them. */
function locks(): LockManager {
  const held = new Set<string>();
  const request = async (name: string, _: unknown, work: (lock: object | null) => Promise<unknown>): Promise<unknown> => {
    if (held.has(name)) return work(null);
    held.add(name);
    return Promise.resolve(work({ name })).finally(() => held.delete(name));
  };
  return { request } as unknown as LockManager;
}

/** Each answers the same store, as the next run finds it. */
const ENGINES: Record<string, () => () => CacheStore> = {
  memory: () => {
    const store = new MemoryStore({ durable: true });
    return () => store;
  },
  sqlite: () => {
    const path = file();
    return () => new SqliteStore(path);
  },
  indexeddb: () => {
    const browser = { indexedDB: new IDBFactory(), locks: locks() };
    return () => new IndexedDbStore("cache", browser);
  },
};

function kept(id: string, value: unknown, version: bigint | null = null, epoch = 0): Kept {
  return { name: nameFromText(id), value, version, epoch };
}

for (const [engine, make] of Object.entries(ENGINES)) {
  test(`${engine}: what was written is loaded, the last written last`, async () => {
    const reopen = make();
    const store = reopen();
    assert.deepEqual(await store.load(), []);
    assert.ok(store.durable);
    const [a, b, c] = [kept("a", '"1"', 2n ** 63n - 1n, 2 ** 32 - 1), kept("base64:AP8", ""), kept("c", "3", 0n)];
    await store.write([a, b], []);
    await store.write([c], []);
    const later = kept("a", "11", 7n, 1);
    await store.write([later], []);
    await store.close();
    const again = reopen();
    assert.deepEqual(await again.load(), [b, c, later]);
    await again.write([], [nameFromText("c"), nameFromText("nobody")]);
    await again.close();
    const last = reopen();
    assert.deepEqual(await last.load(), [b, later]);
    await last.close();
  });
}

for (const versioned of [false, true]) {
  const how = versioned ? "with versions" : "without versions";
  test(`${how} 500 restarts with nothing changed cost no notification and no fetch`, async () => {
    const scene = storing(new MemoryStore({ durable: true }), { versioned });
    const names = ["a", "b", "c"];
    scene.write("a"); // of the others no version is known
    for (const name of names) await scene.get(name);
    await scene.wait();
    assert.equal(scene.owed, 0);
    const fetches = scene.fetches.length;
    const { told } = scene;
    for (let i = 0; i < 500; i++) {
      await scene.restart();
      for (const name of names) {
        await scene.get(name);
        assert.equal(scene.cache.state(name).state, "fresh");
      }
    }
    assert.equal(scene.fetches.length, fetches);
    assert.equal(scene.told, told);
    scene.write("a");
    await scene.wait();
    assert.equal(await scene.get("a"), "a@2", "and it still hears of changes");
    await scene.end();
  });

  test(`${how} what changed between two runs is fetched`, async () => {
    const scene = storing(new MemoryStore({ durable: true }), { versioned });
    await scene.get("a");
    await scene.get("b");
    await scene.wait();
    await scene.end();
    scene.write("a");
    const fetches = scene.fetches.length;
    scene.begin();
    assert.equal(await scene.get("a"), "a@1");
    assert.equal(await scene.get("b"), "b@0");
    await scene.wait();
    assert.equal(scene.fetches.length, fetches + 1);
    assert.equal(scene.owed, 0);
    await scene.end();
  });
}

test("with versions a miss costs one fetch and no notification, and without a durable store none is stated", async () => {
  for (const durable of [true, false]) {
    const scene = storing(new MemoryStore({ durable }), { versioned: true });
    scene.write("doc");
    await scene.get("doc");
    await scene.wait();
    assert.equal(scene.cache.state("doc").state, "fresh");
    assert.equal(scene.fetches.length, 1);
    assert.equal(scene.told, durable ? 0 : 1);
    await scene.end();
  }
});

test("a client without its state is told only of what is newer", async () => {
  const scene = storing(new MemoryStore({ durable: true }), { versioned: true });
  scene.write("a");
  scene.write("b");
  await scene.get("a");
  await scene.get("b");
  await scene.wait();
  await scene.end();
  scene.state.delete();
  scene.write("b");
  const { told, fetches: { length: fetches } } = scene;
  scene.begin();
  assert.equal(await scene.get("a"), "a@1");
  assert.equal(await scene.get("b"), "b@2");
  assert.deepEqual([scene.told, scene.fetches.length], [told + 1, fetches + 1]);
  await scene.end();
});

test("the store holds what the cache holds, and nothing that went", async () => {
  const store = new MemoryStore({ durable: true });
  const scene = storing(store, { entriesMax: 1 });
  await scene.get("a");
  await scene.wait();
  assert.deepEqual([...store.entries.keys()], ["a"]);
  const late = scene.cache.get("b");
  await scene.wait(0.05);
  await scene.get("c"); // while b is fetched
  await scene.service.run(late);
  await scene.wait();
  assert.deepEqual([...store.entries.keys()], ["c"]);
  await scene.end();
});

test("a store is written to once at a time, and what comes meanwhile is written together", async () => {
  const sizes: number[] = [];
  let writing = false;
  class Slow extends MemoryStore {
    override async write(...changes: Parameters<MemoryStore["write"]>): Promise<void> {
      assert.ok(!writing);
      writing = true;
      sizes.push(changes[0].length);
      await new Promise<void>((done) => void scene.service.clock.after(1, done));
      await super.write(...changes);
      writing = false;
    }
  }
  const scene: Scene = storing(new Slow({ durable: true }));
  scene.takesS = 0;
  const names = Array.from({ length: 10 }, (_, number) => `doc:${number}`);
  const first = scene.cache.get("first");
  await scene.wait(0.5);
  await scene.service.run(Promise.all([first, ...names.map((name) => scene.cache.get(name))]));
  assert.deepEqual(sizes.slice(0, 2), [1, 10]);
  await scene.wait(10);
  assert.equal(scene.owed, 0);
  await scene.service.run(scene.end());
});

test("what could not be stored is served but not acknowledged", async () => {
  class Full extends MemoryStore {
    full = false;
    override async write(...changes: Parameters<MemoryStore["write"]>): Promise<void> {
      if (this.full) throw new Error("no space left");
      await super.write(...changes);
    }
  }
  const store = new Full({ durable: true });
  const scene = storing(store, { versioned: true });
  await scene.get("doc");
  await scene.wait();
  store.full = true;
  scene.write("doc");
  await scene.wait(1);
  assert.equal(await scene.get("doc"), "doc@1");
  assert.equal(scene.owed, 1);
  store.full = false;
  await scene.wait(10);
  assert.equal(scene.owed, 0);
  assert.equal(store.entries.get(nameFromText("doc"))?.version, 1n);
  assert.match(scene.warnings[0] ?? "", /could not be stored/);
  await scene.end();
});

test("what cannot be encoded is said to whoever asks", async () => {
  for (const value of [undefined, 7n, () => {}]) assert.throws(() => jsonCodec.encode(value), TypeError);
  const encode = (): never => {
    throw new TypeError("not of this world");
  };
  const scene = storing(new MemoryStore({ durable: true }), { codec: { encode, decode: (data) => data } });
  await assert.rejects(scene.get("doc"), /not of this world/);
  await scene.end();
});

test("what cannot be decoded or is too much is not taken up", async () => {
  const store = new MemoryStore({ durable: true });
  await store.write([kept("long ago", '"x"'), kept("bad", "{"), kept("good", '"kept"')], []);
  const scene = storing(store, { entriesMax: 2, refresh: "on-use" });
  await scene.service.run(scene.cache.start());
  assert.equal(scene.cache.size, 1);
  assert.equal(scene.cache.peek("good"), "kept");
  await scene.wait();
  assert.deepEqual([...store.entries.keys()], ["good"]);
  assert.deepEqual(scene.client.registrations(), ["good"]);
  assert.match(scene.warnings[0] ?? "", /bad is of no use/);
  await scene.end();
});

test("without the service the first use waits a moment and then fetches", async () => {
  const store = new MemoryStore({ durable: true });
  await store.write([kept("doc", '"old"')], []);
  const scene = storing(store, { startWaitS: 2 });
  scene.service.disconnect(scene.client);
  assert.equal(await scene.get("doc"), "doc@0");
  assert.ok(scene.service.nowS >= 2 && scene.service.nowS < 2.3, `${scene.service.nowS}`);
  await scene.end();
});

test("closing while the store's values wait for the service ends the wait", async () => {
  const store = new MemoryStore({ durable: true });
  await store.write([kept("doc", '"old"')], []);
  const scene = storing(store);
  scene.service.disconnect(scene.client);
  const waiting = assert.rejects(scene.cache.get("doc"), { code: "client-stopped" });
  await scene.service.settled();
  await scene.end();
  await waiting;
});

test("a whole cache in a file, over a restart", async () => {
  const path = file();
  const scene = storing(new SqliteStore(path), { versioned: true });
  scene.write("doc");
  assert.equal(await scene.get("doc"), "doc@1");
  await scene.wait();
  await scene.end();
  const { state, service, fetches } = scene;
  const next = storing(new SqliteStore(path), { versioned: true, scene: { state, service, fetches } });
  assert.equal(await next.get("doc"), "doc@1");
  assert.equal(next.cache.state("doc").state, "fresh");
  assert.deepEqual(next.fetches, ["doc"]);
  await next.end();
});

test("a file is held by one at a time", async () => {
  const path = file();
  const [first, second] = [new SqliteStore(path), new SqliteStore(path)];
  await first.load();
  await first.write([kept("a", "1")], []);
  await assert.rejects(second.load(), { code: "state-in-use" });
  await first.close();
  assert.deepEqual(await second.load(), [kept("a", "1")]);
  await second.close();
});

test("a file that is damaged, or of a later format, is put aside", async () => {
  for (const damage of [
    (path: string) => writeFileSync(path, "this is not a database, but it is long enough to be looked at".repeat(100)),
    (path: string) => {
      const database = new DatabaseSync(path);
      database.exec("PRAGMA user_version = 99");
      database.close();
    },
  ]) {
    const path = file();
    damage(path);
    const store = new SqliteStore(path);
    assert.deepEqual(await store.load(), []);
    await store.write([kept("a", "1")], []);
    await store.close();
    assert.ok(existsSync(`${path}.damaged`));
  }
});

test("a file that cannot be is named", async () => {
  await assert.rejects(new SqliteStore(join(folder, "nowhere", "cache.db")).load(), { code: "invalid-setting", message: /cannot be used/ });
  const store = new SqliteStore(file());
  await assert.rejects(store.write([], []), { message: /not open/ });
  await store.load();
  await assert.rejects(store.write([kept("a", { no: "text" })], []), TypeError);
  await store.write([kept("a", new Uint8Array([255]))], []);
  await store.close();
});

test("of two tabs one holds the store, and what the other fetched anew the store has no more", async () => {
  const browser = { indexedDB: new IDBFactory(), locks: locks() };
  const [first, second] = [new IndexedDbStore("cache", browser), new IndexedDbStore("cache", browser)];
  await first.load();
  await first.write([kept("a", new Date(0)), kept("b", new Map([[1, 2]]))], []);
  assert.deepEqual(await second.load(), []);
  assert.deepEqual([first.durable, second.durable], [true, false]);
  await second.write([kept("a", "newer")], [nameFromText("b")]);
  await first.write([kept("a", "of a fetch that began before")], []);
  await first.write([], [nameFromText("a")]);
  await first.write([kept("a", "still too early to say")], []);
  await first.close();
  const third = new IndexedDbStore("cache", browser);
  assert.deepEqual(await third.load(), [kept("b", new Map([[1, 2]]))]);
  await third.write([kept("a", "fetched in this run")], []);
  await third.close();
  await second.close();
  const fourth = new IndexedDbStore("cache", browser);
  assert.deepEqual(await fourth.load(), [kept("b", new Map([[1, 2]])), kept("a", "fetched in this run")]);
  await fourth.close();
  await assert.rejects(fourth.write([], []), { message: /not open/ });
});

test("where there is no IndexedDB, that is said", () => {
  assert.throws(() => new IndexedDbStore(), { code: "invalid-setting" });
});

test("a page is loaded again, and what did not change is fresh without a fetch", async () => {
  const browser = { indexedDB: new IDBFactory(), locks: locks() };
  const first = storing(new IndexedDbStore("cache", browser));
  await really(first, first.cache.get("doc"));
  for (let i = 0; i < 100 && !(first.cache.state("doc").state === "fresh" && first.owed === 0); i++) await turns(first);
  await really(first, first.end());
  const { state, service, fetches } = first;
  const before = fetches.length;
  assert.equal(before, 2, "the first, and the one for which the new registration asked");
  const next = storing(new IndexedDbStore("cache", browser), { scene: { state, service, fetches } });
  assert.equal(await really(next, next.cache.get("doc")), "doc@0");
  assert.equal(next.cache.state("doc").state, "fresh");
  assert.equal(fetches.length, before);
  await really(next, next.end());
});

/** IndexedDB works in turns of its own, which no clock of the test moves. */
async function turns(scene: Scene): Promise<void> {
  await scene.wait(0.1);
  await new Promise((done) => setTimeout(done, 1));
}

async function really<T>(scene: Scene, promise: Promise<T>): Promise<T> {
  let over = false;
  void promise.finally(() => (over = true));
  for (let i = 0; i < 1_000 && !over; i++) await turns(scene);
  return promise;
}
