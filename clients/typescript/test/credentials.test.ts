/** `Client` of an application that asks who its users are: texts, providers, refusals, revocations; as tests/client/test_shell_credentials.py. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Client } from "../src/client.ts";
import { InvalidSetting } from "../src/core/errors.ts";
import { nameFromText } from "../src/core/model.ts";
import { Door, ready } from "./door.ts";

function refusals(client: Client): string[] {
  const told: string[] = [];
  client.addEventListener("credentialrefused", ({ detail }) => told.push(detail.code));
  return told;
}

test("a text is shown with the handshake and over each connection", async () => {
  const door = new Door();
  const client = door.client({ credential: "good" });
  await client.register("a", () => {});
  await ready(door, client);
  assert.deepEqual(door.shown, ["good"]);
  door.interrupted();
  await door.clock.until(() => door.shown.length === 2, 60);
  await ready(door, client);
  assert.equal(client.credentialProblem, "");
  await client.close();
});

test("a text that is refused is tried with pauses, and the application told once of each reason", async () => {
  const door = new Door();
  const client = door.client({ credential: "forged" });
  const told = refusals(client);
  const errors: string[] = [];
  client.addEventListener("error", ({ detail }) => errors.push(String(detail.error)));
  await client.start();
  await door.clock.until(() => door.shown.length === 5, 60);
  assert.ok(door.clock.now() > 1);
  assert.deepEqual(told, ["credential-refused"]);
  assert.equal(client.credentialProblem, "credential-refused");
  assert.ok(client.connected && !client.inSync);
  const synced = assert.rejects(client.synced(100), /credential-refused/);
  await door.clock.advance(1);
  await synced;
  door.why = "credential-expired";
  await door.clock.until(() => told.length === 2, 60);
  await client.useCredential("good");
  await ready(door, client);
  assert.deepEqual([client.credentialProblem, told.at(-1)], ["", "credential-expired"]);
  assert.ok(!errors.join().includes("forged"));
  await client.close();
});

test("without one the client says so, and waits; one that is given then is shown at once", async () => {
  const door = new Door();
  const client = door.client();
  const told = refusals(client);
  await client.start();
  await door.clock.until(() => told.length > 0, 60);
  assert.deepEqual(told, ["credential-required"]);
  const asked = door.heard.length;
  await door.clock.advance(40);
  assert.ok(door.heard.length - asked < 30);
  const nowS = door.clock.now();
  await client.useCredential("good");
  await ready(door, client);
  assert.equal(door.clock.now(), nowS);
  await client.close();
});

test("one that is given before the start is used from the start", async () => {
  const door = new Door();
  const client = door.client({ credential: "forged" });
  await client.useCredential("good");
  await ready(door, client);
  assert.deepEqual(door.shown, ["good"]);
  await client.close();
});

test("a provider is called at the start, before anything is said, and not again while its answer is good", async () => {
  const door = new Door();
  let calls = 0;
  const credential = (): Promise<string> => {
    calls += 1;
    return new Promise((answer) => void door.clock.after(5, () => answer("good")));
  };
  const client = door.client({ credential });
  await client.start();
  await door.clock.advance(4);
  assert.equal(door.heard.length, 0);
  await ready(door, client);
  door.interrupted();
  await door.clock.until(() => door.shown.length === 2, 60);
  await ready(door, client);
  assert.deepEqual([door.shown, calls], [["good", "good"], 1]);
  await client.close();
});

test("a connection waits for a provider for 10 s, and a call of 30 s has failed", async () => {
  const door = new Door();
  let calls = 0;
  const client = door.client({ credential: () => (calls++ ? "good" : new Promise<string>(() => {})) });
  const errors: string[] = [];
  client.addEventListener("error", ({ detail }) => errors.push(String(detail.error)));
  await client.start();
  await door.clock.advance(9.9);
  assert.equal(door.heard.length, 0);
  await door.clock.advance(0.2);
  assert.ok(door.heard.length > 0);
  await door.clock.advance(19);
  assert.equal(calls, 1);
  await ready(door, client);
  assert.equal(calls, 2);
  assert.match(errors.join(), /TimeoutError/);
  await client.close();
});

test("when it expired the provider is called, and registrations stay; the application hears nothing of it", async () => {
  const door = new Door();
  const texts = ["good", "better"];
  door.users = { good: 0, better: 0 };
  const client = door.client({ credential: () => texts.shift() as string });
  const told = refusals(client);
  await client.register("a", () => {});
  await ready(door, client);
  const registered = (): number => door.heard.flatMap((message) => message.register ?? []).length;
  const before = registered();
  door.wants("credential-expired");
  await door.clock.until(() => door.shown.includes("better"), 60);
  await ready(door, client);
  assert.deepEqual([registered(), told], [before, []]);
  await client.close();
});

test("before it ends the provider is called, once", async () => {
  const door = new Door();
  let calls = 0;
  door.users = { "number 1": 100, "number 2": 1e6 };
  const client = door.client({ credential: () => `number ${++calls}` });
  await ready(door, client);
  await door.clock.until(() => calls === 2, 91);
  assert.ok(door.clock.now() >= 70);
  await door.clock.advance(200);
  assert.deepEqual([door.shown, calls], [["number 1", "number 2"], 2]);
  await client.close();
});

test("a provider that fails is asked again with pauses that grow, one call at a time, and what it throws is not shown", async () => {
  const door = new Door();
  const calls: number[] = [];
  let atOnce = 0;
  const credential = async (): Promise<string> => {
    assert.equal(atOnce++, 0);
    calls.push(door.clock.now());
    await new Promise<void>((done) => void door.clock.after(0.1, done));
    atOnce -= 1;
    if (calls.length < 8) throw new TypeError("the secret");
    return "good";
  };
  const client = door.client({ credential });
  const errors: string[] = [];
  client.addEventListener("error", ({ detail }) => errors.push(String(detail.error)));
  await client.start();
  await door.clock.until(() => client.inSync, 120);
  assert.equal(calls.length, 8);
  assert.ok((calls[7] as number) > 5, String(calls));
  assert.match(errors.join(), /TypeError/);
  assert.ok(!errors.join().includes("secret"));
  await client.close();
});

test("a provider whose answers are refused is told of from the second refusal on", async () => {
  const door = new Door();
  const client = door.client({ credential: () => "forged" });
  const told = refusals(client);
  await client.start();
  await door.clock.until(() => door.shown.length === 2, 60);
  await door.clock.until(() => told.length > 0, 60);
  assert.deepEqual(told, ["credential-refused"]);
  await client.close();
  const shown = door.shown.length;
  await door.clock.advance(60);
  assert.equal(door.shown.length, shown, "a client that is closed asks nobody");
});

test("what is no credential is refused by name, and not shown", async () => {
  const door = new Door();
  const long = "x".repeat(8193);
  for (const credential of [7, {}, long] as unknown as string[]) {
    const client = door.client({ credential });
    await assert.rejects(client.start(), (error) => error instanceof InvalidSetting && !error.message.includes("xx"));
    await assert.rejects(client.useCredential(long), InvalidSetting);
  }
  const client = door.client({ credential: () => 7 as unknown as string });
  await client.start();
  await door.clock.advance(3);
  assert.deepEqual(door.shown, []);
  await client.close();
});

test("a registration that is revoked has ended: who registered it is told, and its handler is called no more", async () => {
  const door = new Door();
  const client = door.client({ credential: "good" });
  const seen: string[] = [];
  for (const type of ["unregistered", "failed"] as const) client.addEventListener(type, ({ detail }) => seen.push(`${type} ${detail.name}`));
  const refused = (name: string, code: string): void => void seen.push(`${name}: ${code}`);
  await client.register("a", (told) => void seen.push(`version ${told.version}`), { refused });
  await ready(door, client);
  await door.clock.until(() => door.server.unacknowledged("demo") === 0, 60);
  seen.length = 0;
  door.revoke("a");
  await door.clock.advance(5);
  assert.deepEqual(seen, ["unregistered a", "a: not-authorized", "failed a"]);
  assert.deepEqual(client.registrations(), []);
  door.server.publish("demo", nameFromText("a"), 5n, null);
  await door.clock.advance(5);
  assert.equal(seen.length, 3);
  await client.close();
});
