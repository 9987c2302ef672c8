/** Registrations and their sync (Thialfi 4.1.3): what tests/client/test_core_registrations.py pins. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { encode, type Sync } from "../src/core/messages.ts";
import { bytesOf, nameFromText } from "../src/core/model.ts";
import { rest } from "../src/core/rest.ts";
import { MESSAGES_UNANSWERED_MAX } from "../src/core/settings.ts";
import { encodeState } from "../src/core/state.ts";
import { bucketOf, bucketSummaries } from "../src/core/buckets.ts";
import { Bench, CONFIG, digestOfAll, names, only, operations, status, syncs } from "./scripted.ts";

/** A client that starts again with the state of an earlier run, not yet granted. */
function returning(...serverHas: string[]): Bench {
  const bench = new Bench({ state: encodeState("demo", "phone", "token-0") });
  bench.serverHas(...serverHas);
  bench.start();
  return bench;
}

function objects(sync: Sync | undefined): string[] {
  assert.ok(sync !== undefined && "objects" in sync);
  return sync.objects.map((one) => one.object);
}

test("operations wait for the handshake, then go together", () => {
  const bench = new Bench();
  bench.do(bench.core.start(bench.nowS));
  bench.register("a", "b");
  bench.do(bench.core.connected(bench.nowS));
  bench.grant();
  const message = bench.said.at(-1);
  assert.deepEqual(message?.register, [{ op: 1, object: "a" }, { op: 2, object: "b" }]);
  assert.deepEqual(message?.summary, digestOfAll(["a", "b"].map(nameFromText))._summary());
});

test("the version held travels with the registration, however large", () => {
  const bench = new Bench().live();
  bench.do(bench.core.register(bench.nowS, nameFromText("a"), 2n ** 63n - 1n, 2));
  assert.deepEqual(bench.said[0]?.register, [{ op: 1, object: "a", version: "9223372036854775807", epoch: 2 }]);
  bench.do(bench.core.register(bench.nowS, nameFromText("b"), 0n));
  assert.deepEqual(bench.said[1]?.register, [{ op: 2, object: "b", version: "0" }]);
});

test("a status confirms and is reported once", () => {
  const bench = new Bench().live();
  bench.register("a");
  bench.serverHas("a");
  bench.say({ status: [status("a")] });
  bench.say({ status: [status("a")] });
  bench.unregister("a");
  bench.serverHas();
  bench.say({ status: [status("a", "unregistered")] });
  assert.deepEqual(bench.statuses, [["a", true], ["a", false]]);
  bench.takeSaid();
  bench.passTime(600);
  assert.deepEqual(operations(bench.said), []);
});

test("an unanswered operation is repeated under new numbers with growing pauses", () => {
  const bench = new Bench({ dice: 1 }).live();
  bench.register("a");
  const sentAtS = [bench.nowS];
  for (let second = 0; second < 400; second++) {
    const before = bench.said.length;
    bench.passTime(1);
    for (let sent = before; sent < bench.said.length; sent++) sentAtS.push(bench.nowS);
  }
  const numbers = operations(bench.said).map(([op]) => op);
  assert.deepEqual(numbers, numbers.map((_, place) => place + 1));
  const pauses = sentAtS.slice(1).map((at, place) => at - (sentAtS[place] as number));
  assert.deepEqual(pauses.slice(0, 6), [2, 4, 8, 16, 32, 60]);
  assert.ok(Math.max(...pauses) <= 61);
});

test("pauses stay between the limits whatever the dice say", () => {
  const bench = new Bench({ dice: 0 }).live();
  bench.register("a");
  bench.passTime(10);
  assert.equal(operations(bench.said).length, 11); // dice of 0 mean retry_min_s each time
});

test("a later wish replaces an unanswered one", () => {
  const bench = new Bench().live();
  bench.register("a");
  bench.unregister("a");
  bench.register("a");
  assert.deepEqual(operations(bench.said), [[1, "a", true], [2, "a", false], [3, "a", true]]);
  bench.say({ status: [status("a", "unregistered")] }); // the late answer to the second
  assert.deepEqual(bench.statuses, []);
  bench.serverHas("a");
  bench.say({ status: [status("a")] });
  assert.deepEqual(bench.statuses, [["a", true]]);
});

test("numbers begin at one with each grant, and what is open is sent again", () => {
  const bench = new Bench().live();
  bench.register("a", "b");
  bench.anew("token-elsewhere", true);
  bench.grant("token-2");
  assert.deepEqual(operations(bench.said.slice(-1)), [[1, "a", true], [2, "b", true]]);
});

test("a reconnect sends what is open at once", () => {
  const bench = new Bench().live();
  bench.register("a");
  bench.takeSaid();
  bench.do(bench.core.disconnected());
  bench.register("b");
  assert.deepEqual(bench.said, []);
  bench.do(bench.core.connected(bench.nowS));
  assert.deepEqual(operations(bench.said), [[2, "a", true], [3, "b", true]]);
});

test("many operations are split, and only so many are unanswered", () => {
  const bench = new Bench({ config: { operations_per_message_max: 10 } }).live();
  bench.do(bench.core.disconnected());
  bench.register(...names(100));
  bench.do(bench.core.connected(bench.nowS));
  assert.deepEqual(bench.said.map((message) => message.register?.length), Array(MESSAGES_UNANSWERED_MAX).fill(10));
  for (let turn = 0; turn < 20; turn++) {
    for (const message of bench.takeSaid()) {
      const told = (message.register ?? []).map((one) => one.object);
      bench.serverHas(...bench.has, ...told);
      bench.say({ status: told.map((name) => status(name)) });
    }
  }
  assert.equal(bench.has.size, 100);
  assert.ok(bench.core.inSync(bench.nowS));
});

test("a message stays below the byte limit with the longest names", () => {
  const bench = new Bench({ config: { message_bytes_max: 20_000 } }).live();
  bench.do(bench.core.disconnected());
  for (let number = 0; number < 200; number++) {
    const name = nameFromText('"'.repeat(120) + String(number).padStart(8, "0"));
    bench.do(bench.core.register(bench.nowS, name, 2n ** 63n - 1n, 2 ** 32 - 1));
  }
  bench.do(bench.core.connected(bench.nowS));
  assert.ok(bench.said.length > 1);
  assert.ok(Math.max(...bench.said.map((message) => encode(message).length)) < 20_000);
});

test("trap 21: a permanent failure leaves the desired set", () => {
  const bench = new Bench().live();
  bench.register("a", "bad");
  bench.serverHas("a");
  bench.say({ status: [status("a"), status("bad", "failed", { code: "invalid-name", message: "no" })] });
  const failure = { kind: "registrationFailed", name: "bad", transient: false, code: "invalid-name", message: "no" };
  assert.deepEqual(bench.actions.filter((action) => action.kind === "registrationFailed"), [failure]);
  bench.takeSaid();
  bench.passTime(300);
  assert.deepEqual([operations(bench.said), syncs(bench.said)], [[], []]);
  assert.ok(bench.core.inSync(bench.nowS));
});

test("a transient failure is reported and tried again, after a sync as an operation", () => {
  const bench = new Bench({ dice: 1 }).live();
  bench.register("a");
  bench.say({ status: [status("a", "failed", { transient: true, code: "partition-unavailable" })] });
  assert.equal(bench.count("registrationFailed"), 1);
  bench.takeSaid();
  bench.passTime(3.9);
  assert.deepEqual(bench.said, []);
  bench.passTime(0.2);
  assert.deepEqual(operations(bench.said), [[2, "a", true]]);
  const synced = new Bench().live().registered("a");
  synced.serverHas();
  synced.say();
  assert.equal(syncs(synced.takeSaid()).length, 1);
  synced.say({ status: [status("a", "failed", { transient: true })] });
  synced.passTime(2);
  assert.deepEqual(operations(synced.said), [[3, "a", true]]);
});

test("a restart with equal summaries resends nothing, and leaves the application time to restate", () => {
  const bench = returning("a", "b", "c");
  bench.grant();
  for (const name of ["a", "b", "c"]) {
    bench.passTime(0.6);
    assert.ok(!bench.core.inSync(bench.nowS));
    bench.register(name);
  }
  bench.passTime(300);
  assert.deepEqual([operations(bench.said), syncs(bench.said)], [[], []]);
  assert.deepEqual(bench.statuses, [["a", true], ["b", true], ["c", true]]);
  assert.ok(bench.core.inSync(bench.nowS));
});

test("a restart with other wishes states them all when the application is done", () => {
  const bench = returning("a", "b");
  bench.register("a", "c");
  bench.grant();
  bench.passTime(1.5);
  assert.deepEqual(operations(bench.said), []);
  assert.deepEqual(objects(only(syncs(bench.said))), ["a", "c"]);
  bench.serverHas("a", "c");
  bench.say({ status: [status("c"), status("b", "unregistered")] });
  assert.deepEqual(bench.statuses.sort(), [["a", true], ["c", true]]);
});

test("a restart that never stops restating is bounded; one without wishes states that", () => {
  const bench = returning("a");
  bench.grant();
  for (let number = 0; number < 30; number++) {
    bench.passTime(0.5);
    bench.register(`new-${number}`);
  }
  assert.ok(syncs(bench.said).length > 0);
  const silent = returning("a");
  silent.grant();
  silent.passTime(2);
  assert.deepEqual(only(syncs(silent.said)), { op: 1, objects: [] });
});

test("a restart of a client whose registrations are lost registers at once", () => {
  const bench = returning();
  bench.register("a");
  bench.grant();
  assert.deepEqual(operations(bench.said), [[1, "a", true]]);
});

test("trap 23: no sync while operations are in flight", () => {
  const bench = new Bench().live().registered("a");
  bench.register("b");
  assert.deepEqual(syncs(bench.takeSaid()), []); // the operation alone, though the summaries differ
  bench.say({ sync_request: {} });
  assert.deepEqual(bench.said, []);
  bench.serverHas("a", "b");
  bench.say({ status: [status("b")] });
  assert.deepEqual(bench.said, []);
});

test("differing summaries with nothing in flight are stated with the versions held", () => {
  const bench = new Bench().live();
  bench.do(bench.core.register(bench.nowS, nameFromText("a"), 3n, 1));
  bench.serverHas("a");
  bench.say({ status: [status("a")] });
  bench.takeSaid();
  bench.serverHas("x");
  bench.say();
  assert.deepEqual(only(syncs(bench.said)), { op: 2, objects: [{ object: "a", version: "3", epoch: 1 }] });
});

test("a sync is repeated with growing pauses until the summaries agree", () => {
  const bench = new Bench({ dice: 1 }).live().registered("a");
  bench.serverHas("x");
  bench.say();
  bench.passTime(100);
  assert.equal(syncs(bench.said).length, 6); // at 0, 2, 6, 14, 30, 62
  bench.serverHas("a");
  bench.say();
  bench.takeSaid();
  bench.passTime(300);
  assert.deepEqual(syncs(bench.said), []);
});

test("a server's hint is obeyed at most once a minute, and not at all when the summaries agree", () => {
  const bench = new Bench().live().registered("a");
  bench.serverHas();
  for (let turn = 0; turn < 20; turn++) bench.say({ sync_request: {} });
  assert.equal(syncs(bench.said).length, 1);
  bench.serverHas("a");
  bench.say({ sync_request: {} });
  assert.equal(syncs(bench.said).length, 1);
  assert.deepEqual(bench.say({ sync_request: {} }), []);
});

test("what the server dropped is reported and repaired", () => {
  const bench = new Bench().live().registered("a");
  bench.serverHas();
  bench.say({ status: [status("a", "unregistered")] });
  assert.deepEqual(bench.statuses, [["a", false]]);
  assert.equal(syncs(bench.said).length, 1);
  bench.serverHas("a");
  bench.say({ status: [status("a")] });
  assert.deepEqual(bench.statuses, [["a", false], ["a", true]]);
});

test("up to 256 registrations are stated at once, above that by buckets", () => {
  for (const count of [256, 257, 3000]) {
    const wished = names(count);
    const bench = new Bench().live().registered(...wished);
    bench.serverHas(...wished.slice(1), "extra");
    bench.say();
    const asked = only(syncs(bench.takeSaid()));
    if (count <= 256) {
      assert.equal(objects(asked).length, count);
      continue;
    }
    assert.ok("summaries" in asked);
    assert.deepEqual(asked.summaries, bucketSummaries(wished.map(nameFromText)));
    const buckets = ["object-0", "extra"].map((name) => bucketOf(nameFromText(name))).sort((one, other) => one - other);
    bench.say({ sync_request: { op: asked.op, buckets: [...buckets].reverse() } });
    const answer = only(syncs(bench.takeSaid()));
    assert.ok("buckets" in answer && answer.op > asked.op);
    assert.deepEqual(answer.buckets, buckets);
    assert.deepEqual(objects(answer).sort(), wished.filter((name) => buckets.includes(bucketOf(nameFromText(name)))).sort());
    bench.say({ sync_request: { op: asked.op, buckets } }); // a repeat
    bench.say({ sync_request: { op: 0, buckets } });
    assert.deepEqual(syncs(bench.said), []);
    bench.serverHas(...wished);
    bench.say();
    assert.ok(bench.core.inSync(bench.nowS));
  }
});

test("buckets are never split, and messages stay within the limit", () => {
  const bench = new Bench({ config: { operations_per_message_max: 100 } }).live();
  bench.do(bench.core.disconnected());
  bench.register(...names(3000));
  bench.do(bench.core.connected(bench.nowS));
  bench.anew();
  bench.grant("token-2");
  const asked = syncs(bench.takeSaid())[0];
  assert.ok(asked !== undefined && "summaries" in asked);
  bench.say({ sync_request: { op: asked.op, buckets: Array.from({ length: 256 }, (_, bucket) => bucket) } });
  const parts = syncs(bench.said);
  let stated = 0;
  for (const [place, part] of parts.entries()) {
    assert.ok("buckets" in part && part.buckets !== undefined);
    const buckets = part.buckets;
    assert.equal(part.op, asked.op + 1 + place);
    assert.ok(objects(part).length <= 100);
    assert.ok(objects(part).every((name) => buckets.includes(bucketOf(nameFromText(name)))));
    stated += objects(part).length;
  }
  assert.equal(stated, 3000);
  assert.deepEqual(parts.flatMap((part) => ("buckets" in part ? part.buckets : [])), Array.from({ length: 256 }, (_, bucket) => bucket));
});

test("registering twice tells again and sends nothing", () => {
  const bench = new Bench().live().registered("a");
  bench.register("a");
  assert.deepEqual(bench.statuses, [["a", true]]);
  bench.unregister("never");
  assert.deepEqual(bench.said, []);
});

test("the two forms of a name are one name", () => {
  const bench = new Bench().live();
  bench.register("base64:aGVsbG8", "hello");
  assert.deepEqual(operations(bench.said), [[1, "hello", true]]);
  bench.serverHas("hello");
  bench.say({ status: [status("base64:aGVsbG8")] });
  assert.deepEqual(bench.statuses, [["hello", true]]);
  assert.equal(bytesOf("base64:aGVsbG8").length, 5);
});

test("without the rest of the core many registrations are stated at once, or one by one; with it by buckets", () => {
  const bench = new Bench();
  bench.core._rest = null;
  bench.live();
  bench.registered(...names(300));
  bench.serverHas("extra"); // it lost them
  bench.say();
  assert.deepEqual(syncs(bench.takeSaid()).map((sync) => "objects" in sync && sync.objects.length), [300]);

  bench.say({ config: { ...CONFIG, operations_per_message_max: 200 } });
  bench.passTime(10);
  assert.deepEqual(operations(bench.takeSaid()).slice(0, 300).map(([, object]) => object), names(300));
  bench.serverHas(...names(300));
  bench.say({ status: names(300).map((name) => status(name)) });
  assert.ok(bench.core.inSync(bench.nowS));

  bench.core._rest = rest;
  bench.serverHas();
  bench.say();
  bench.passTime(100);
  assert.ok(syncs(bench.takeSaid()).every((sync) => "summaries" in sync && sync.summaries.length > 100));
});

test("without the rest of the core a refusal is heeded: later, never, or begin again", () => {
  const bench = new Bench();
  bench.core._rest = null;
  bench.live().registered("a");
  bench.register("b", "c");
  bench.takeSaid();
  bench.say({ status: [status("b", "failed", { transient: true, code: "unavailable" }), status("c", "failed", { code: "not-authorized" })] });
  assert.equal(bench.count("registrationFailed"), 2);
  bench.passTime(10);
  assert.ok(operations(bench.takeSaid()).every(([, object]) => object === "b"), "c is given up");
  bench.say({ error: { code: "overloaded", message: "full", transient: true, retry_after_s: 30 } });
  bench.passTime(29);
  assert.deepEqual([bench.takeSaid(), bench.count("reported")], [[], 1]);
  bench.passTime(60);
  bench.anew("session-superseded", true);
  bench.anew("session-superseded", true);
  assert.equal(bench.core.stopped, null, "who would say so is not there");
  bench.passTime(120);
  bench.grant("token-2", { summary: null });
  bench.serverHas("a", "b");
  bench.say({ status: [status("b")] });
  assert.ok(bench.core.inSync(bench.nowS));
});

test("a core without a credential takes no notice of what the server says of credentials", () => {
  const bench = new Bench().live();
  assert.deepEqual(bench.say({ credential: { wanted: true, code: "credential-required" } }), []);
  assert.deepEqual(bench.core.useCredential(bench.nowS, "text"), []);
  assert.ok(bench.core.inSync(bench.nowS));
});
