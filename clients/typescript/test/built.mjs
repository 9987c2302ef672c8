/**
 * The built package, by a Node that need not understand TypeScript: `npm run smoke`, after `npm run build`. Node 20 has no WebSocket of its
 * own, so a client polls there by itself; and takes a class of WebSockets if it is given one.
 *
 *     <path of Node 20> test/built.mjs
 */

import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Client, MemoryState } from "roskva";
import { ClientCore, nameFromText } from "roskva/core";
import { LiveCache } from "roskva/livecache";
import { FileState, Publisher } from "roskva/node";
import { Service } from "roskva/testing";

/** What a gateway answers to a message of a client: in agreement with all that it wishes for. */
function answer(text, versions) {
  const { init, summary, token = "t", register = [], acks = [] } = JSON.parse(text);
  if (init) return { token, summary, grant: { nonce: init.nonce, token }, config: { retry_min_s: 0.1, connect_min_s: 0.01 } };
  const status = register.map(({ object }) => ({ object, state: "registered" }));
  const known = register.filter(({ object }) => versions.has(object));
  const notify = known.map(({ object }) => ({ object, seqno: "1", version: versions.get(object) }));
  return { token, summary, status, notify, unsettled: notify.length, acks };
}

/** Long polls, and publishes. */
async function gateway() {
  const versions = new Map([["doc:42", "7"]]);
  const acks = [];
  const waiting = []; // to be said
  let poll = null;
  const speak = () => {
    if (!poll || !waiting.length) return;
    poll.end(waiting.splice(0).join("\n"));
    poll = null;
  };
  const server = createServer(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    if (request.url === "/v1/publish") {
      response.end('{"results":[{"ok":true}]}');
    } else if (request.url === "/v1/channels") {
      response.writeHead(201).end('{"id":"c1","wait_s":5}');
    } else if (request.method === "GET") {
      poll = response;
      speak();
    } else {
      for (const line of request.method === "POST" ? body.split("\n") : []) {
        const { acks: told, ...said } = answer(line, versions);
        if (told) acks.push(...told);
        waiting.push(JSON.stringify(said));
      }
      response.writeHead(204).end();
      speak();
    }
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return { url: `http://127.0.0.1:${server.address().port}`, acks, server };
}

/** A class of WebSockets, such as a package brings it. */
class GivenSocket {
  constructor(url) {
    assert.match(url, /^ws:/);
    queueMicrotask(() => this.onopen());
  }

  send(text) {
    const { acks, ...said } = answer(text, new Map([["doc:42", "8"]]));
    queueMicrotask(() => this.onmessage({ data: JSON.stringify(said) }));
  }

  close() {
    queueMicrotask(() => this.onclose?.({ code: 1000, wasClean: true }));
  }
}

async function told(client) {
  const version = await new Promise((seen) => client.register("doc:42", (notification) => seen(notification.version)));
  await client.synced(5_000);
  return version;
}

// The package's own properties have short names in all modules, and are not declared where a user could see them.
const built = new URL("../dist/", import.meta.url);
for (const file of readdirSync(built, { recursive: true, encoding: "utf8" })) {
  if (/(?<!\.min|roskva)\.js$/.test(file)) assert.doesNotMatch(readFileSync(new URL(file, built), "utf8"), /\._[a-z]\w{2,}/, file);
}
for (const file of ["client", "registrations", "channels/channel", "core/index", "core/core", "core/desired", "core/credential"]) {
  assert.doesNotMatch(readFileSync(new URL(`${file}.d.ts`, built), "utf8"), /^ +(readonly )?_[a-z]/m, file);
}

const { url, acks, server } = await gateway();
const folder = mkdtempSync(join(tmpdir(), "roskva-"));

delete globalThis.WebSocket; // as in Node 20
const polling = new Client(url, { application: "demo", state: new FileState(join(folder, "state.json")) });
assert.equal(await told(polling), 7n);
assert.equal(polling.channel, "long-poll");
await polling.close();
assert.deepEqual(acks.map(({ object, version }) => [object, version]), [["doc:42", "7"]]);
assert.throws(() => new Client(url, { application: "demo", channel: "websocket" }), { code: "invalid-setting" });

const given = new Client(url, { application: "demo", state: new MemoryState(), WebSocket: GivenSocket });
assert.equal(await told(given), 8n);
assert.equal(given.channel, "websocket");
await given.close();

const service = new Service();
const client = service.client("shop");
const values = new Map([["doc:42", "first draft"]]);
const cache = new LiveCache(client, (id) => values.get(id));
assert.equal(await service.run(cache.get("doc:42")), "first draft");
values.set("doc:42", "second draft");
service.publish("shop", "doc:42", 2);
await service.advance(1);
assert.equal(await service.run(cache.get("doc:42")), "second draft");
await service.run(client.forget());
await service.close();

assert.equal(new ClientCore("demo", "phone", { random: () => 0.5, nonce: () => "n" }).register(0, nameFromText("a")).length, 0);
await new Publisher(url, { application: "demo" }).publish("doc:42", 7n);
server.closeAllConnections();
server.close();
rmSync(folder, { recursive: true });
console.log(`the built package works in Node ${process.version}`);
