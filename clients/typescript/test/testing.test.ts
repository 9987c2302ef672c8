/** roskva/testing as its users use it: real clients, a service in memory, a clock moved by hand, and whatever can go wrong. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { type Client } from "../src/client.ts";
import { nameFromText } from "../src/core/model.ts";
import { bucketOf } from "../src/core/buckets.ts";
import { hashOf, SetDigest } from "../src/core/summaries.ts";
import { MemoryState } from "../src/stores/memory.ts";
import { HandClock, Service, Stuck } from "../src/testing/index.ts";
import { Server } from "../src/testing/server.ts";

type Seen = (bigint | null)[];

async function watching(client: Client, id: string): Promise<Seen> {
  const seen: Seen = [];
  await client.register(id, ({ version }) => void seen.push(version));
  return seen;
}

test("a version is told, and acknowledged; what needs no time happens by itself", async () => {
  const service = new Service();
  service.publish("shop", "doc:42", 7);
  const client = service.client("shop");
  const seen = await watching(client, "doc:42");
  await client.synced();
  await service.settled();
  assert.deepEqual(seen, [7n]);
  assert.deepEqual(service.registered("shop", "doc:42"), ["device-1"]);
  assert.equal(service.unacknowledged("shop"), 0);
  service.publish("shop", "doc:42", 8n);
  service.publish("shop", "doc:42", 8n);
  await service.settled();
  assert.deepEqual(seen, [7n, 8n]);
  assert.equal(service.nowS, 0);
  await service.until(() => client.inSync);
  assert.ok(service.nowS < 2);
  await service.close();
});

test("an object of which no version is known is unknown; a held version is not told", async () => {
  const service = new Service();
  const client = service.client("shop");
  assert.deepEqual([await watching(client, "new"), await service.settled()], [[null], undefined]);
  service.publish("shop", "held", 5);
  const seen: Seen = [];
  await client.register("held", ({ version }) => void seen.push(version), { version: 5n });
  await service.advance(100);
  assert.deepEqual(seen, []);
  service.loseVersion("shop", "held");
  await service.settled();
  assert.deepEqual(seen, [null]);
  assert.equal(service.version("shop", "held"), null);
  await service.close();
});

test("what is not acknowledged comes again, and so does what is lost", async () => {
  const service = new Service();
  const client = service.client("shop");
  const seen = await watching(client, "doc");
  await service.settled();
  service.lose(1, "client");
  service.publish("shop", "doc", 1);
  await service.settled();
  assert.deepEqual(seen, [null]);
  assert.equal(service.unacknowledged("shop"), 1);
  await service.advance(2);
  assert.deepEqual(seen, [null, 1n]);
  service.lose(1, "service"); // the acknowledgement
  service.publish("shop", "doc", 2);
  await service.settled();
  assert.equal(service.unacknowledged("shop"), 1);
  await service.advance(2);
  assert.deepEqual(seen, [null, 1n, 2n], "told once, although it was sent twice");
  assert.equal(service.unacknowledged("shop"), 0);
  await service.close();
});

for (const loss of [0.2, 0.5]) {
  test(`with ${loss} of all messages lost and the others late, the latest version arrives`, async () => {
    const service = new Service({ loss, delayS: 0.2, seed: 7 });
    const client = service.client("shop");
    const names = Array.from({ length: 20 }, (_, number) => `doc:${number}`);
    const seen = await Promise.all(names.map((name) => watching(client, name)));
    for (const name of names) for (let version = 1; version < 4; version++) service.publish("shop", name, version);
    await service.until(() => seen.every((versions) => versions.includes(3n)), 3_000);
    await service.until(() => client.inSync, 3_000);
    await service.close();
  });
}

test("messages take as long as they are told to, and are lost if they are told to", async () => {
  const service = new Service({ delayS: 3 });
  const client = service.client("shop");
  const seen = await watching(client, "doc");
  await service.until(() => client.inSync);
  assert.ok(service.nowS >= 12, "two messages in either direction, at least");
  service.publish("shop", "doc", 1);
  await service.advance(2.9);
  assert.deepEqual(seen, [null]);
  await service.advance(0.1);
  assert.deepEqual(seen, [null, 1n]);
  service.loss = 1;
  service.publish("shop", "doc", 2);
  await service.advance(1000);
  assert.deepEqual(seen, [null, 1n]);
  service.loss = 0;
  await service.until(() => client.inSync);
  assert.deepEqual(seen, [null, 1n, 2n]);
  await service.close();
});

test("what was told and not acknowledged is told again over a new connection", async () => {
  const service = new Service({ config: { resend_min_s: 500, resend_max_s: 500 } });
  const client = service.client("shop");
  await client.register("doc", () => {}, { manual: true });
  await service.settled();
  assert.equal(service.notified, 1);
  service.disconnect(client);
  await service.advance(10);
  service.reconnect(client);
  await service.advance(60);
  assert.equal(service.notified, 2);
  await service.close();
});

/** Says what a client would not. */
class Talker {
  readonly server = new Server({}, () => 100);
  readonly said: Record<string, never>[] = [];
  readonly names = new SetDigest();
  token = "";

  say(message: object): Record<string, never>[] {
    this.said.length = 0;
    this.server.hear(this, JSON.stringify({ token: this.token, summary: this.names._summary(), ...message }));
    return [...this.said];
  }

  hear(data: string): void {
    this.said.push(JSON.parse(data));
  }
}

test("the model keeps to the protocol with those who do not", () => {
  const talker = new Talker();
  const init = { nonce: "n", application: "shop", device: "phone" };
  assert.equal(talker.say({ token: "client-7/1" })[0]?.["start_anew"]?.["code"], "token-invalid");
  talker.token = talker.say({ init })[0]?.["grant"]?.["token"] ?? "";
  for (const name of ["a", "b"]) talker.names._change(hashOf(nameFromText(name)));
  const [told] = talker.say({ register: [{ op: 5, object: "a" }, { op: 6, object: "b" }] });
  const [{ seqno }] = told?.["notify"] as unknown as [{ seqno: string }];
  assert.equal(talker.server.unacknowledged("shop"), 2);
  assert.deepEqual(talker.say({ acks: [{ object: "a", seqno: "77" }] }), [], "not answered, and of no effect");
  assert.equal(talker.server.unacknowledged("shop"), 2);
  talker.say({ acks: [{ object: "a", seqno }] });
  assert.equal(talker.server.unacknowledged("shop"), 1);
  talker.say({ unregister: [{ op: 5, object: "a" }] });
  assert.deepEqual(talker.server.devices("shop", nameFromText("a")), ["phone"], "late");
  talker.names._change(hashOf(nameFromText("c")));
  assert.deepEqual(talker.say({})[0]?.["sync_request"], {}, "the summaries differ");
  assert.equal(talker.say({})[0]?.["sync_request"], undefined, "hinted a moment ago");
  const bucket = bucketOf(nameFromText("a"));
  assert.notEqual(bucket, bucketOf(nameFromText("b")));
  talker.say({ sync: { op: 7, objects: [], buckets: [bucket] } });
  assert.deepEqual(["a", "b"].map((name) => talker.server.devices("shop", nameFromText(name)).length), [0, 1]);
  const next = talker.say({ init: { ...init, prior: talker.token } })[0]?.["grant"]?.["token"] ?? "";
  talker.say({ token: next });
  assert.equal(talker.say({})[0]?.["start_anew"]?.["code"], "session-superseded");
});

test("a client that is away is told when it is back", async () => {
  const service = new Service();
  const client = service.client("shop");
  const events: string[] = [];
  client.addEventListener("disconnected", () => events.push("disconnected"));
  const seen = await watching(client, "doc");
  await service.until(() => client.inSync);
  service.disconnect(client);
  await service.advance(1000);
  assert.ok(!client.inSync);
  assert.ok(events.length > 0);
  service.publish("shop", "doc", 1);
  await service.advance(1000);
  assert.deepEqual(seen, [null]);
  service.reconnect(client);
  await service.until(() => client.inSync);
  assert.deepEqual(seen, [null, 1n]);
  await service.close();
});

test("a service that stops, loses everything or collects a client is found again", async () => {
  const service = new Service();
  const client = service.client("shop");
  const seen = await watching(client, "doc");
  service.publish("shop", "doc", 1);
  await service.until(() => client.inSync);
  service.stop();
  assert.throws(() => service.publish("shop", "doc", 2), { code: "service-unreachable" });
  await service.advance(100);
  assert.ok(!client.inSync);
  service.start();
  await service.until(() => client.inSync);
  service.dropEverything();
  assert.deepEqual(service.registered("shop", "doc"), []);
  await service.until(() => service.registered("shop", "doc").length === 1 && client.inSync);
  assert.equal(seen.at(-1), null, "it cannot know what happened");
  service.publish("shop", "doc", 9);
  service.collect(client);
  await service.until(() => client.inSync);
  assert.equal(seen.at(-1), 9n);
  service.reset("shop");
  service.publish("shop", "doc", 1);
  await service.until(() => client.inSync && seen.at(-1) === 1n);
  await service.close();
});

test("a restart with the same state costs nothing, and two clients with one state are found out", async () => {
  const service = new Service();
  const state = new MemoryState();
  const first = service.client("shop", { device: "phone", state });
  await watching(first, "doc");
  await service.until(() => first.inSync);
  await first.close();
  const notified = service.notified;
  const second = service.client("shop", { device: "phone", state });
  assert.deepEqual(await watching(second, "doc"), []);
  await service.until(() => second.inSync);
  assert.equal(service.notified, notified);
  let stopped = 0;
  const third = service.client("shop", { device: "phone", state });
  for (const client of [second, third]) client.addEventListener("stopped", () => (stopped += 1));
  await watching(third, "doc");
  await service.until(() => stopped > 0);
  await service.close();
});

test("many registrations are synced by buckets, and a client that is forgotten is gone", async () => {
  const service = new Service();
  const client = service.client("shop");
  for (let number = 0; number < 300; number++) await client.register(`doc:${number}`, () => {});
  await service.until(() => client.inSync);
  service.dropEverything();
  await service.until(() => client.inSync && service.registered("shop", "doc:299").length === 1);
  for (let number = 0; number < 300; number += 3) await client.unregister(`doc:${number}`);
  await service.until(() => client.inSync);
  assert.deepEqual([service.registered("shop", "doc:0"), service.registered("shop", "doc:1")], [[], [client.device]]);
  await service.run(client.forget());
  assert.deepEqual(service.registered("shop", "doc:1"), []);
  await service.close();
});

test("the source of a change is not told, the others are", async () => {
  const service = new Service();
  const [author, reader] = [service.client("shop", { device: "author" }), service.client("shop", { device: "reader" })];
  const seen = [await watching(author, "doc"), await watching(reader, "doc")];
  await service.until(() => author.inSync && reader.inSync);
  await service.publisher("shop").publish("doc", 1, "author");
  await service.advance(100);
  assert.deepEqual(seen, [[null], [null, 1n]]);
  await service.close();
});

test("too many registrations are refused, and what makes no sense is answered", async () => {
  const service = new Service({ config: { registrations_max: 1 } });
  const client = service.client("shop");
  const failed: string[] = [];
  client.addEventListener("failed", ({ detail }) => failed.push(detail.code));
  await client.register("a", () => {});
  await client.register("b", () => {});
  await service.until(() => client.inSync);
  assert.deepEqual(failed, ["too-many-registrations"]);
  for (const version of [-1, 1.5, 2 ** 53, 2n ** 63n, "seven", "9".repeat(19)]) {
    assert.throws(() => service.publish("shop", "a", version), { code: "invalid-version" });
  }
  const [first, second] = await service.publisher("shop").publishMany([["a", 7], ["a", -1]]);
  assert.deepEqual([first, second?.code, service.version("shop", "a")], [null, "invalid-version", 7n]);
  assert.throws(() => service.publish("No Shop", "a", 1), { code: "invalid-application" });
  const other = new Service();
  assert.throws(() => other.disconnect(client), { code: "invalid-setting" });
  await other.close();
  assert.throws(() => other.client("shop"), { code: "client-stopped" });
  await service.close();
});

test("what is no message is answered with an error", () => {
  const said: string[] = [];
  const server = new Server({}, () => 0);
  for (const data of ["{", "{}", "null", '{"token":7}']) server.hear({ hear: (answer) => said.push(JSON.parse(answer).error.code) }, data);
  assert.deepEqual(new Set(said), new Set(["malformed-message"]));
  assert.equal(said.length, 4);
});

test("who waits for what does not happen is told so", async () => {
  const service = new Service();
  await assert.rejects(service.until(() => false, 5), Stuck);
  await assert.rejects(service.run(new Promise(() => {}), 5), Stuck);
  await assert.rejects(service.advance(-1), RangeError);
  await service.close();
});

test("the clock calls back in order, by time and then by turn, and forgets what is cancelled", async () => {
  const clock = new HandClock();
  const called: string[] = [];
  clock.after(2, () => called.push("later"));
  clock.after(1, () => called.push("first"));
  clock.after(1, () => called.push("second"));
  clock.after(1, () => called.push("never"))();
  clock.after(0, () => called.push("now"));
  clock.after(0, () => called.push("not now"))();
  await clock.advance(0);
  assert.deepEqual(called, ["now"]);
  await clock.advance(1.5);
  assert.deepEqual(called, ["now", "first", "second"]);
  assert.equal(clock.now(), 1.5);
  let over = false;
  const again = (): void => void (over || clock.after(0, again));
  again();
  await assert.rejects(clock.settled(), Stuck);
  over = true;
});
