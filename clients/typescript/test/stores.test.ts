/** Where a client keeps its state: a file that one process holds at a time, and a browser's storage. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { InvalidSetting, StateInUse } from "../src/errors.ts";
import { FileState } from "../src/stores/file.ts";
import { openIdentity } from "../src/stores/store.ts";
import { WebStorageState } from "../src/stores/webstorage.ts";

const folder = mkdtempSync(join(tmpdir(), "roskva-state-"));
after(() => rmSync(folder, { recursive: true }));

test("a file is written whole, for its owner only, and read by the next run", async () => {
  const path = join(folder, "deep", "state");
  const first = new FileState(path);
  const { device, _prior: prior } = await openIdentity(first, "demo", "");
  assert.equal(prior, "");
  assert.match(device, /^[0-9a-z-]{16,40}$/);
  await first.close();
  const second = new FileState(path);
  assert.equal((await openIdentity(second, "demo", "")).device, device);
  assert.equal(statSync(path).mode & 0o777, 0o600);
  assert.deepEqual(readdirSync(join(folder, "deep")).sort(), ["state", "state.lock"]);
  await second.delete();
  await second.close();
  assert.deepEqual(readdirSync(join(folder, "deep")), []);
});

test("a file is held by one client at a time; a holder that died is none", async () => {
  const path = join(folder, "held");
  const first = new FileState(path);
  assert.equal(await first.read(), null);
  await assert.rejects(new FileState(path).read(), StateInUse);
  assert.equal(readFileSync(`${path}.lock`, "utf8"), String(process.pid));
  await first.close();
  for (const left of ["4194305", "", "nonsense"]) {
    writeFileSync(`${path}.lock`, left);
    const next = new FileState(path);
    assert.equal(await next.read(), null, left);
    await next.close();
  }
});

test("a lock with this process's own number that it does not hold was left by another", async () => {
  const path = join(folder, "first-process");
  writeFileSync(`${path}.lock`, String(process.pid));
  const state = new FileState(path);
  assert.equal(await state.read(), null);
  await assert.rejects(new FileState(path).read(), StateInUse);
  await state.close();
  assert.equal(await state.read(), null);
  await state.close();
});

test("of several processes that find a lock without a holder one takes it", async () => {
  const rounds = 40;
  const [everyMs, startMs] = [8, Date.now() + 1_500];
  for (let round = 0; round < rounds; round++) writeFileSync(join(folder, `race-${round}.lock`), "4194305");
  const script = `
    const { FileState } = await import(${JSON.stringify(new URL("../src/stores/file.ts", import.meta.url).href)});
    const won = [];
    for (let round = 0; round < ${rounds}; round++) {
      await new Promise((done) => setTimeout(done, Math.max(0, ${startMs} + round * ${everyMs} - Date.now() - 2)));
      while (Date.now() < ${startMs} + round * ${everyMs});
      await new FileState(${JSON.stringify(folder)} + "/race-" + round).read().then(() => won.push(round), () => {});
    }
    console.log(JSON.stringify(won));
    process.stdin.resume().on("end", () => process.exit()); // they hold what they won until all are done`;
  const racers = [1, 2, 3].map(() => spawn(process.execPath, ["--input-type=module", "-e", script], { stdio: ["pipe", "pipe", "inherit"] }));
  const won = await Promise.all(racers.map(async ({ stdout }) => JSON.parse(String((await once(stdout, "data"))[0])) as number[]));
  for (const racer of racers) racer.stdin.end();
  const all = won.flat().sort((one, other) => one - other);
  assert.deepEqual(all, Array.from({ length: rounds }, (_, round) => round));
  writeFileSync(join(folder, "left.lock"), "4194305");
  writeFileSync(join(folder, "left.lock.clear"), ""); // by one that died in the middle
  utimesSync(join(folder, "left.lock.clear"), 1, 1);
  const next = new FileState(join(folder, "left"));
  assert.equal(await next.read(), null);
  await next.close();
  assert.deepEqual(readdirSync(folder).filter((name) => name.startsWith("left")), []);
});

test("a path that cannot be is refused by name", async () => {
  writeFileSync(join(folder, "file"), "");
  await assert.rejects(new FileState(join(folder, "file", "state")).read(), InvalidSetting);
  await assert.rejects(new FileState(folder).read(), InvalidSetting);
});

test("a browser's storage that is full costs no more than the identity", async () => {
  const items = new Map<string, string>();
  const storage = {
    getItem: (key: string) => items.get(key) ?? null,
    setItem: (key: string, value: string) => void items.set(key, value),
    removeItem: (key: string) => void items.delete(key),
  } as unknown as Storage;
  const state = new WebStorageState("k", storage);
  const { device } = await openIdentity(state, "demo", "phone");
  assert.equal(device, "phone");
  assert.equal((await openIdentity(new WebStorageState("k", storage), "demo", "")).device, "phone");
  state.delete();
  assert.equal(items.size, 0);
  storage.setItem = () => {
    throw new Error("full");
  };
  assert.equal((await openIdentity(state, "demo", ""))._prior, "");
});
