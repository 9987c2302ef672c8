/** LiveCache over the real client and a service in memory, on a clock moved by hand: as tests/client/test_livecache.py. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { FetchFailed, LiveCache } from "../src/livecache.ts";
import { Service } from "../src/testing/index.ts";
import { PAUSES, Scene } from "./scene.ts";

const failed = (pattern: RegExp) => (error: unknown): boolean => {
  assert.ok(error instanceof FetchFailed);
  assert.match(error.message, pattern);
  return true;
};

test("however many ask, it is fetched once", async () => {
  const scene = new Scene({ versioned: true });
  scene.write("doc");
  const all = await scene.service.run(Promise.all(Array.from({ length: 100 }, () => scene.cache.get("doc"))));
  assert.deepEqual(new Set(all), new Set(["doc@1"]));
  await scene.wait();
  for (let i = 0; i < 100; i++) assert.equal(await scene.cache.get("doc"), "doc@1");
  assert.deepEqual(scene.fetches, ["doc"]);
  assert.equal(scene.cache.state("doc").state, "fresh");
  assert.equal(scene.owed, 0);
  await scene.end();
});

test("without versions what the registration tells is fetched for", async () => {
  const scene = new Scene();
  await scene.get("doc");
  assert.equal(scene.cache.state("doc").state, "unknown");
  await scene.wait();
  assert.equal(scene.cache.state("doc").state, "fresh");
  assert.equal(scene.fetches.length, 2);
  await scene.wait(1000);
  await scene.get("doc");
  assert.equal(scene.fetches.length, 2);
  await scene.end();
});

test("after a notification it is fetched in the background and then acknowledged", async () => {
  const scene = new Scene({ versioned: true });
  await scene.get("doc");
  await scene.wait();
  const before = scene.fetches.length;
  scene.write("doc");
  await scene.wait(0.05);
  assert.equal(scene.cache.state("doc").state, "stale");
  assert.equal(scene.owed, 1, "not before the fetch is done");
  await scene.wait(0.1);
  assert.equal(scene.owed, 0);
  assert.equal(await scene.cache.get("doc"), "doc@1");
  assert.equal(scene.fetches.length, before + 1);
  await scene.end();
});

test("on use, nothing is fetched before somebody asks", async () => {
  const scene = new Scene({ versioned: true, refresh: "on-use" });
  scene.write("doc");
  await scene.get("doc");
  await scene.wait();
  scene.write("doc");
  await scene.wait(500);
  assert.equal(scene.fetches.length, 1);
  assert.equal(scene.cache.state("doc").state, "stale");
  assert.equal(scene.cache.state("doc").forS, 500);
  assert.equal(await scene.get("doc"), "doc@2");
  await scene.wait();
  assert.equal(scene.owed, 0);
  await scene.end();
});

test("a fetch that was under way is not joined after a notification", async () => {
  const scene = new Scene({ refresh: "on-use" });
  scene.write("doc");
  await scene.get("doc");
  await scene.wait();
  scene.takesS = 5;
  const early = scene.cache.get("doc");
  await scene.wait(1);
  scene.write("doc");
  await scene.wait(1);
  const late = scene.cache.get("doc");
  assert.equal(await scene.service.run(early), "doc@1");
  assert.ok(scene.owed > 0, "an old value acknowledges nothing");
  assert.equal(await scene.service.run(late), "doc@2");
  await scene.wait();
  assert.equal(scene.owed, 0);
  await scene.end();
});

test("at most so many entries and registrations stay", async () => {
  const scene = new Scene({ entriesMax: 3, versioned: true });
  const registered = (): string[] => [..."abcd"].filter((name) => scene.service.registered("demo", name).length > 0);
  scene.write("a");
  for (const name of "abcd") {
    await scene.get(name);
    await scene.get("a"); // used again and again: it stays
  }
  await scene.wait();
  assert.equal(scene.fetches.filter((name) => name === "a").length, 1);
  assert.deepEqual(registered(), ["a", "c", "d"]);
  assert.equal(scene.cache.size, 3);
  assert.ok(!scene.cache.has("b"));
  scene.write("b");
  assert.equal(await scene.get("b"), "b@1");
  await scene.wait();
  assert.deepEqual(registered(), ["a", "b", "d"]);
  await scene.cache.discard("b");
  await scene.wait();
  assert.deepEqual(registered(), ["a", "d"]);
  await scene.end();
  assert.deepEqual(registered(), [], "without a store nothing outlives the cache");
});

test("who waits for an entry that goes gets its value", async () => {
  const scene = new Scene({ entriesMax: 1 });
  scene.takesS = 1;
  const first = scene.cache.get("a");
  await scene.wait(0.5);
  const second = scene.cache.get("b");
  assert.equal(await scene.service.run(first), "a@0");
  assert.ok(!scene.cache.has("a"));
  assert.equal(await scene.service.run(second), "b@0");
  await scene.wait();
  assert.deepEqual(scene.service.registered("demo", "a"), []);
  assert.deepEqual(scene.service.registered("demo", "b"), ["phone"]);
  await scene.end();
});

test("whoever waited for an older fetch gets what is held by then", async () => {
  const scene = new Scene({ entriesMax: 1, versioned: true });
  scene.takesS = 5;
  const first = scene.cache.get("a");
  await scene.wait(1);
  scene.takesS = 0;
  await scene.get("b"); // the first goes
  scene.write("a");
  assert.equal(await scene.get("a"), "a@1");
  await scene.wait(1);
  assert.equal(scene.owed, 0, "acknowledged");
  assert.equal(await scene.service.run(first), "a@1");
  await scene.end();
});

test("so many fetches in the background at a time, and no more", async () => {
  const scene = new Scene({ versioned: true, refreshesMax: 3 });
  const names = Array.from({ length: 20 }, (_, number) => `doc:${number}`);
  for (const name of names) await scene.get(name);
  await scene.wait();
  scene.fetches.length = 0;
  for (const name of names) scene.write(name);
  for (let turns = 1; turns <= 7; turns++) {
    await scene.wait(turns === 1 ? 0.05 : 0.1);
    assert.equal(scene.fetches.length, Math.min(20, 3 * turns));
  }
  await scene.wait();
  assert.equal(scene.owed, 0);
  await scene.end();
});

test("what was never fetched is not held nor registered", async () => {
  const scene = new Scene();
  scene.broken = true;
  await assert.rejects(scene.get("doc"), (error) => {
    assert.ok(error instanceof FetchFailed);
    assert.equal((error.cause as Error).message, "no route");
    return true;
  });
  assert.equal(scene.cache.size, 0);
  await scene.wait();
  assert.deepEqual(scene.client.registrations(), []);
  scene.broken = false;
  assert.equal(await scene.get("doc"), "doc@0");
  await scene.end();
});

test("a fetch that fails keeps the old value and is tried with growing pauses and a bound", async () => {
  const scene = new Scene();
  await scene.get("doc");
  await scene.wait();
  scene.broken = true;
  scene.fetches.length = 0;
  scene.write("doc");
  await scene.wait(1000);
  assert.equal(scene.fetches.length, PAUSES.triesMax);
  assert.equal(scene.warnings.length, PAUSES.triesMax);
  assert.equal(scene.owed, 1, "not acknowledged");
  assert.equal(scene.cache.peek("doc"), "doc@0");
  assert.equal(scene.cache.state("doc").state, "stale");
  await assert.rejects(scene.get("doc"), failed(/no route/));
  const tried = scene.fetches.length;
  await assert.rejects(scene.get("doc"), (error) => failed(/no route/)(error) && (error as FetchFailed).retryInS > 0);
  assert.equal(scene.fetches.length, tried, "in a pause nobody asks the backend");
  scene.broken = false;
  await scene.wait(PAUSES.maxS);
  assert.equal(await scene.get("doc"), "doc@1");
  await scene.wait();
  assert.equal(scene.owed, 0);
  await scene.end();
});

test("the old value is served if so wished when the fetch fails", async () => {
  const scene = new Scene({ serveIfFailed: true });
  await scene.get("doc");
  await scene.wait();
  scene.broken = true;
  scene.write("doc");
  for (let i = 0; i < 3; i++) assert.equal(await scene.get("doc"), "doc@0");
  assert.equal(scene.owed, 1);
  await scene.end();
});

test("a fetch that takes too long failed, and is told so", async () => {
  const service = new Service();
  let asked: AbortSignal | undefined;
  const never = (_: string, { signal }: { signal: AbortSignal }): Promise<string> => {
    asked = signal;
    return new Promise(() => {});
  };
  const cache = new LiveCache(service.client("demo"), never, { fetchTimeoutS: 2 });
  await assert.rejects(service.run(cache.get("doc")), failed(/TimeoutError/));
  assert.ok(asked?.aborted);
  await cache.close();
  await service.close();
});

for (const [outOfSyncS, fetches] of [[10, 6], [0, 61], [Infinity, 1]] as const) {
  test(`out of sync a value is good for ${outOfSyncS} s`, async () => {
    const scene = new Scene({ versioned: true, outOfSyncS });
    scene.write("doc");
    scene.takesS = 0;
    await scene.get("doc");
    await scene.wait();
    assert.equal(scene.cache.state("doc").state, "fresh");
    scene.service.disconnect(scene.client);
    await scene.wait(0.5);
    for (let i = 0; i < 60; i++) {
      await scene.get("doc");
      await scene.wait(1);
    }
    assert.equal(scene.fetches.length, fetches);
    assert.equal(scene.cache.state("doc").state, "unknown");
    scene.service.reconnect(scene.client);
    await scene.service.until(() => scene.cache.state("doc").state === "fresh");
    await scene.get("doc");
    assert.equal(scene.fetches.length, fetches);
    await scene.end();
  });
}

test("what changed while the client was away is stale when it is back", async () => {
  const scene = new Scene({ refresh: "on-use" });
  await scene.get("doc");
  await scene.wait();
  await scene.get("doc");
  await scene.wait();
  scene.service.disconnect(scene.client);
  scene.write("doc");
  await scene.wait(500);
  assert.equal(scene.cache.state("doc").state, "unknown");
  scene.service.reconnect(scene.client);
  await scene.service.until(() => scene.cache.state("doc").state === "stale");
  assert.equal(await scene.get("doc"), "doc@1");
  await scene.end();
});

test("others on their way do not make an entry unknown", async () => {
  const scene = new Scene({ versioned: true });
  scene.write("doc");
  await scene.get("doc");
  await scene.wait();
  await scene.client.register("other", () => {}, { manual: true }); // never acknowledged
  await scene.wait(60);
  assert.ok(!scene.client.inSync);
  assert.equal(scene.cache.state("doc").state, "fresh");
  await scene.get("doc");
  assert.equal(scene.fetches.length, 1);
  await scene.end();
});

test("a replica that lags is asked again", async () => {
  const scene = new Scene({ versioned: true });
  scene.write("doc");
  await scene.get("doc");
  await scene.wait();
  scene.lag = 1;
  scene.fetches.length = 0;
  scene.write("doc");
  await scene.wait(1);
  assert.equal(scene.owed, 1);
  assert.equal(scene.cache.state("doc").state, "stale");
  assert.equal(await scene.get("doc"), "doc@1", "what the replica has, as without a cache");
  scene.lag = 0;
  await scene.wait(10);
  assert.equal(scene.cache.state("doc").state, "fresh");
  assert.equal(scene.owed, 0);
  assert.ok(scene.fetches.length >= 2 && scene.fetches.length <= PAUSES.triesMax);
  await scene.end();
});

test("after a reset smaller versions are later ones", async () => {
  const scene = new Scene({ versioned: true });
  for (let i = 0; i < 9; i++) scene.write("doc");
  assert.equal(await scene.get("doc"), "doc@9");
  await scene.wait();
  scene.versions.clear();
  scene.service.reset("demo");
  await scene.wait();
  scene.write("doc");
  await scene.wait();
  assert.equal(await scene.get("doc"), "doc@1");
  assert.equal(scene.cache.state("doc").state, "fresh");
  assert.equal(scene.owed, 0);
  await scene.end();
});

test("an object that the service refuses is fetched again and again, and registered when it can be", async () => {
  const service = new Service({ config: { registrations_max: 1 } });
  const client = service.client("demo");
  await client.register("other");
  let fetches = 0;
  const cache = new LiveCache(client, () => ++fetches);
  for (let i = 0; i < 6; i++) {
    await cache.get("doc");
    await service.advance(6);
  }
  assert.equal(cache.state("doc").state, "unknown");
  assert.equal(fetches, 3);
  await client.unregister("other");
  await service.advance(5);
  await cache.get("doc");
  await service.until(() => cache.state("doc").state === "fresh");
  await cache.close();
  await service.close();
});

test("what the application wrote itself is fetched again", async () => {
  const scene = new Scene();
  await scene.get("doc");
  await scene.wait();
  scene.versions.set("doc", 5);
  scene.cache.invalidate("doc");
  scene.cache.invalidate("nobody holds this");
  assert.equal(await scene.get("doc"), "doc@5");
  await scene.end();
});

test("closing tells whoever waits, and refuses whoever comes", async () => {
  const scene = new Scene();
  scene.takesS = 100;
  const waiting = scene.cache.get("doc");
  const stopped = assert.rejects(waiting, { code: "client-stopped" });
  await scene.wait(1);
  await scene.cache.close();
  await stopped;
  await assert.rejects(scene.cache.get("doc"), { code: "client-stopped" });
  await scene.end();
});

test("who gives up waiting takes nothing from the others", async () => {
  const scene = new Scene({ versioned: true });
  scene.write("doc");
  scene.takesS = 2;
  const patient = scene.cache.get("doc");
  const impatient = new AbortController();
  const gone = assert.rejects(scene.cache.get("doc", { signal: impatient.signal }), { name: "AbortError" });
  await scene.wait(1);
  impatient.abort();
  await gone;
  assert.equal(await scene.service.run(patient), "doc@1");
  assert.deepEqual(scene.fetches, ["doc"]);
  await scene.end();
});

test("a client that stopped leaves a cache by time", async () => {
  const scene = new Scene();
  await scene.client.close();
  assert.equal(await scene.get("doc"), "doc@0");
  await scene.wait(11);
  await scene.get("doc");
  assert.equal(scene.fetches.length, 2);
  assert.match(scene.warnings[0] ?? "", /without being registered/);
  await scene.end();
});

test("bad input is named", async () => {
  const service = new Service();
  const client = service.client("demo");
  assert.throws(() => new LiveCache(client, () => 1, { entriesMax: 0 }), { code: "invalid-setting" });
  assert.throws(() => new LiveCache(client, () => 1, { refresh: "sometimes" as "on-use" }), { code: "invalid-setting" });
  const cache = new LiveCache(client, (() => 7) as never, { versioned: true });
  await assert.rejects(cache.get(""), { code: "invalid-name" });
  await assert.rejects(cache.get("doc"), failed(/must answer/));
  const versions = [1.5, -1, 2n ** 63n, "7", null, undefined];
  const odd = new LiveCache(client, (() => ({ value: 1, version: versions.shift() })) as never, { versioned: true });
  while (versions.length) await assert.rejects(odd.get("doc"), failed(/is not a version/));
  await cache.close();
  await odd.close();
  await service.close();
});

test("the type of the values is that of what fetch answers", async () => {
  const service = new Service();
  const client = service.client("demo");
  const plain: LiveCache<number> = new LiveCache(client, () => 7);
  const versioned: LiveCache<string> = new LiveCache(client, async (id) => ({ value: id, version: 1n }), { versioned: true });
  // @ts-expect-error: versioned, and there is no version
  const wrong = new LiveCache(client, () => 7, { versioned: true });
  assert.deepEqual([await plain.get("a"), await versioned.get("b")], [7, "b"]);
  for (const cache of [plain, versioned, wrong]) await cache.close();
  await service.close();
});

test("whoever shows an object is told of every change of value, state and error", async () => {
  const scene = new Scene({ versioned: true, refresh: "on-use" });
  scene.write("doc");
  const seen: unknown[] = [];
  const end = scene.cache.subscribe("doc", () => seen.push(Object.values(scene.cache.live("doc")).map(String)));
  assert.deepEqual(scene.cache.live("doc"), { value: undefined, state: "unknown", error: null });
  await scene.wait(10);
  assert.deepEqual(seen.splice(0), [["doc@1", "unknown", "null"], ["doc@1", "fresh", "null"]]);
  scene.write("doc");
  await scene.wait(10);
  assert.deepEqual(seen.splice(0), [["doc@1", "stale", "null"], ["doc@2", "fresh", "null"]], "shown is in use");
  scene.service.disconnect(scene.client);
  await scene.wait(5);
  assert.deepEqual(seen.splice(0), [["doc@2", "unknown", "null"]]);
  scene.broken = true;
  await scene.wait(100);
  const [broken, ...more] = seen.splice(0) as string[][];
  assert.match(broken?.[2] ?? "", /no route/);
  assert.ok(more.every(([value]) => value === "doc@2"));
  const tried = scene.fetches.length;
  assert.ok(tried > 4, "tried again while it is shown");
  scene.broken = false;
  scene.service.reconnect(scene.client);
  await scene.service.until(() => scene.cache.live("doc").state === "fresh" && scene.cache.live("doc").error === null);
  end();
  seen.length = 0;
  scene.write("doc");
  await scene.wait(100);
  assert.deepEqual(seen, []);
  await scene.end();
});

test("what is shown is fetched again although nothing was ever held", async () => {
  const scene = new Scene();
  scene.broken = true;
  let told = 0;
  scene.cache.subscribe("doc", () => (told += 1));
  await scene.wait(60);
  assert.match(String(scene.cache.live("doc").error), /no route/);
  const tried = scene.fetches.length;
  assert.ok(tried > 5 && tried < 60, `${tried}: with pauses`);
  scene.broken = false;
  await scene.service.until(() => scene.cache.live("doc").state === "fresh");
  assert.deepEqual([scene.cache.live("doc").value, scene.cache.live("doc").error], ["doc@0", null]);
  assert.ok(told > 1);
  await scene.end();
  scene.cache.subscribe("doc", () => {})();
});

test("what is shown stays, if there is anything else to go", async () => {
  const scene = new Scene({ entriesMax: 2 });
  scene.cache.subscribe("shown", () => {});
  await scene.wait();
  for (const name of "abc") await scene.get(name);
  assert.equal(scene.cache.peek("shown"), "shown@0");
  assert.equal(scene.cache.size, 2);
  await scene.end();
});

test("a callback that fails takes nothing from the others, nor from who asks", async () => {
  const scene = new Scene({ versioned: true });
  let told = 0;
  scene.cache.subscribe("doc", () => {
    throw new Error("a component");
  });
  scene.cache.subscribe("doc", () => (told += 1));
  assert.equal(await scene.get("doc"), "doc@0");
  await scene.wait();
  assert.equal(scene.cache.live("doc").state, "fresh");
  assert.ok(told >= 2);
  assert.ok(scene.warnings.length >= 2 && scene.warnings.every((warning) => /told of doc failed/.test(warning)));
  await scene.end();
});

test("the confirmation of one registration is the business of those who show that object", async () => {
  const scene = new Scene({ versioned: true });
  const names = Array.from({ length: 200 }, (_, i) => `o${i}`);
  for (const name of names) scene.cache.subscribe(name, () => {});
  const { toldUntil } = scene.client;
  let looks = 0;
  scene.client.toldUntil = (id) => {
    looks += 1;
    return toldUntil.call(scene.client, id);
  };
  await scene.wait();
  assert.ok(names.every((name) => scene.cache.live(name).state === "fresh"));
  assert.ok(looks < 50 * names.length, `${looks}`);
  await scene.end();
});
