/**
 * `node test/real-users.ts URL KEY FORGED SHORT LONG`: clients of ann, and publishers with a key, against a real service whose application
 * `shop` asks who its users are. SHORT is good for some seconds. Prints one line for each thing that held. tests/e2e runs it.
 */

import assert from "node:assert/strict";
import { Client } from "../src/client.ts";
import { LiveCache, NotAuthorized } from "../src/livecache.ts";
import { Publisher } from "../src/node.ts";

const [url = "", key = "", forged = "", short = "", long = ""] = process.argv.slice(2);
const WAIT_MS = 30_000;

async function until(happened: () => boolean): Promise<void> {
  for (const deadline = Date.now() + WAIT_MS; !happened(); ) {
    assert.ok(Date.now() < deadline, `not within ${WAIT_MS} ms: ${happened}`);
    await new Promise((done) => setTimeout(done, 10));
  }
}

const publisher = new Publisher(url, { application: "shop", key });
const stranger = new Publisher(url, { application: "shop", key: "rk_of_somebody_else" });
await assert.rejects(stranger.publish("inbox:ann", 1), { code: "publish-key-refused" });
console.log("a key that is refused");

const ann = new Client(url, { application: "shop", credential: forged });
const refused: string[] = [];
const failed: string[] = [];
const versions: (bigint | null)[] = [];
ann.addEventListener("credentialrefused", ({ detail }) => refused.push(detail.code));
ann.addEventListener("failed", ({ detail }) => failed.push(`${detail.name} ${detail.code}`));
await ann.register("inbox:ann", ({ version }) => void versions.push(version));
await until(() => refused.length > 0);
assert.deepEqual([refused, ann.credentialProblem, ann.inSync], [["credential-refused"], "credential-refused", false]);
await ann.useCredential(long);
await ann.synced(WAIT_MS);
await publisher.publish("inbox:ann", 2);
await until(() => versions.includes(2n));
console.log("a forged credential, then one that counts");

await ann.register("inbox:bob");
await until(() => failed.length > 0);
assert.deepEqual([failed, ann.registrations()], [["inbox:bob not-authorized"], ["inbox:ann"]]);
const cache = new LiveCache(ann, (id) => `value of ${id}`, { warn: () => {} });
await cache.get("inbox:bob"); // the service has not refused it yet
await until(() => !cache.has("inbox:bob"));
await assert.rejects(cache.get("inbox:bob"), NotAuthorized);
assert.equal(await cache.get("news:today"), "value of news:today");
await cache.close();
await ann.close();
console.log("what she may not have");

const given: string[] = [];
const credential = (): string => {
  given.push(given.length ? long : short);
  return given.at(-1) as string;
};
const again = new Client(url, { application: "shop", credential });
const told: string[] = [];
for (const type of ["credentialrefused", "unregistered", "outofsync"] as const) again.addEventListener(type, () => told.push(type));
versions.length = 0;
await again.register("inbox:ann", ({ version }) => void versions.push(version));
await until(() => again.inSync);
await until(() => given.length === 2);
await publisher.publish("inbox:ann", 3);
await until(() => versions.includes(3n) && again.inSync);
assert.ok(!told.includes("credentialrefused") && !told.includes("unregistered"), told.join());
console.log("a provider that is asked in time");
await again.close();
await publisher.close();
await stranger.close();
