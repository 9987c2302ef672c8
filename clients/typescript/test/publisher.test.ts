/** The publisher against a service that answers what the test says. */

import assert from "node:assert/strict";
import { createServer, type IncomingMessage } from "node:http";
import { test } from "node:test";
import { InvalidDevice, InvalidName, InvalidVersion, RoskvaError } from "../src/core/errors.ts";
import { InvalidSetting, ServiceUnreachable } from "../src/errors.ts";
import { outcomesOf, pauseS, Publisher } from "../src/publisher.ts";

interface Asked {
  readonly application: string;
  readonly updates: readonly { object: string; version: string; source?: string }[];
}
type Answer = (asked: Asked, count: number) => { status: number; body: unknown };

const durable: Answer = ({ updates }) => ({ status: 200, body: { results: updates.map(() => ({ ok: true })) } });
const OVERLOADED = { code: "overloaded", message: "busy", transient: true };

async function text(request: IncomingMessage): Promise<string> {
  let body = "";
  for await (const chunk of request) body += chunk;
  return body;
}

async function serving(answer: Answer, use: (url: string, asked: Asked[]) => Promise<void>): Promise<void> {
  const asked: Asked[] = [];
  const server = createServer((request, response) => {
    void text(request).then((body) => {
      assert.equal(request.url, "/v1/publish");
      asked.push(JSON.parse(body));
      const { status, body: said } = answer(asked.at(-1) as Asked, asked.length);
      response.writeHead(status, { "Content-Type": "application/json" }).end(typeof said === "string" ? said : JSON.stringify(said));
    });
  });
  await new Promise<void>((ready) => server.listen(0, "127.0.0.1", ready));
  try {
    await use(`http://127.0.0.1:${(server.address() as { port: number }).port}`, asked);
  } finally {
    server.close();
    server.closeAllConnections();
  }
}

test("calls of one turn travel together, versions as text", () =>
  serving(durable, async (url, asked) => {
    const publisher = new Publisher(url, { application: "shop" });
    await Promise.all([publisher.publish("a", 1), publisher.publish("b", 2n ** 63n - 1n, "phone"), publisher.publish("base64:__4", "3")]);
    assert.deepEqual(asked, [
      {
        application: "shop",
        updates: [
          { object: "a", version: "1" },
          { object: "b", version: "9223372036854775807", source: "phone" },
          { object: "base64:__4", version: "3" },
        ],
      },
    ]);
    await publisher.close();
    await assert.rejects(publisher.publish("a", 2), { code: "client-stopped" });
  }));

test("what may pass is tried again, and only that", () => {
  const answer: Answer = ({ updates }, count) =>
    count === 1
      ? { status: 200, body: { results: [{ ok: true }, { error: OVERLOADED }, { error: { code: "invalid-name", message: "no" } }] } }
      : durable({ application: "", updates }, count);
  return serving(answer, async (url, asked) => {
    const publisher = new Publisher(url, { application: "shop" });
    const results = await publisher.publishMany([["a", 1], ["b", 1], ["c", 1]]);
    assert.deepEqual(results.map((result) => result?.code ?? null), [null, null, "invalid-name"]);
    assert.deepEqual(asked.map(({ updates }) => updates.length), [3, 1]);
    await publisher.close();
  });
});

test("many are cut into requests of a thousand, and wait for room", () =>
  serving(durable, async (url, asked) => {
    const publisher = new Publisher(url, { application: "shop", waitingMax: 100 });
    const changes = Array.from({ length: 1_500 }, (_, number): [string, number] => [`o${number}`, 1]);
    const results = await publisher.publishMany(changes);
    assert.deepEqual(new Set(results), new Set([null]));
    assert.equal(asked.reduce((sum, { updates }) => sum + updates.length, 0), 1_500);
    assert.ok(asked.every(({ updates }) => updates.length <= 100));
    await publisher.close();
  }));

test("it gives up in the end, with the last reason", () =>
  serving(() => ({ status: 502, body: "<html>bad gateway</html>" }), async (url, asked) => {
    const publisher = new Publisher(url, { application: "shop", retryForS: 0.5 });
    await assert.rejects(publisher.publish("a", 1), ServiceUnreachable);
    assert.ok(asked.length > 1);
    const refused = new Publisher("http://127.0.0.1:9", { application: "shop", retryForS: 0 });
    await assert.rejects(refused.publish("a", 1), ServiceUnreachable);
  }));

test("bad input is thrown before anything is sent", async () => {
  const publisher = new Publisher("http://127.0.0.1:9", { application: "shop" });
  const wrong = [-1, 1.5, 2 ** 60, "", "1e3", "-1", 2n ** 63n];
  for (const version of wrong) await assert.rejects(publisher.publish("a", version), InvalidVersion);
  await assert.rejects(publisher.publish("", 1), InvalidName);
  await assert.rejects(publisher.publish("a", 1, ""), InvalidDevice);
  await assert.rejects(publisher.publishMany([["a", 1], ["", 1]]), InvalidName);
  assert.throws(() => new Publisher("127.0.0.1:9", { application: "shop" }), InvalidSetting);
  assert.throws(() => new Publisher("http://x", { application: "" }), RoskvaError);
});

test("what an answer means: as src/roskva/publisher.py has it", () => {
  const brief = (status: number, body: string, count = 1): [string | null, boolean][] =>
    outcomesOf(status, body, count).map(({ error, again }) => [error?.code ?? null, again]);
  assert.deepEqual(brief(200, '{"results":[{"ok":true}]}'), [[null, false]]);
  assert.deepEqual(brief(200, '{"results":[{"ok":true}]}', 2), [["service-unreachable", true], ["service-unreachable", true]]);
  assert.deepEqual(brief(503, JSON.stringify({ error: OVERLOADED })), [["overloaded", true]]);
  assert.deepEqual(brief(404, '{"error":{"code":"unknown-application","message":"x"}}'), [["unknown-application", false]]);
  for (const body of ["", "null", "7", "[]", "{", '{"results":7}', '{"results":[null]}', '{"error":"x"}']) {
    assert.deepEqual(brief(200, body), [["service-unreachable", true]], body);
    assert.deepEqual(brief(403, body)[0]?.[0], "service-unreachable", body);
  }
});

test("a key is shown with every request; one that is refused is not tried again, and never shown in an error", async () => {
  const keys: (string | undefined)[] = [];
  const refuse = { error: { code: "publish-key-refused", message: "No.", transient: false } };
  const server = createServer((request, response) => {
    keys.push(request.headers.authorization);
    request.resume().on("end", () => response.writeHead(401).end(JSON.stringify(refuse)));
  });
  await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
  const url = `http://127.0.0.1:${(server.address() as { port: number }).port}`;
  const publisher = new Publisher(url, { application: "shop", key: "rk_secret" });
  await assert.rejects(publisher.publish("a", 1), (error) => error instanceof RoskvaError && error.code === "publish-key-refused");
  assert.deepEqual(keys, ["Bearer rk_secret"]);
  await publisher.close();
  server.close();
  server.closeAllConnections();
  for (const key of ["", "with space", "line\n", "ü"]) {
    assert.throws(() => new Publisher(url, { application: "shop", key }), (error) => error instanceof InvalidSetting && !error.message.includes(key || "|"));
  }
});

test("who is refused for his pace comes again when the service says, or a proxy in its stead", () => {
  const limited = JSON.stringify({ error: { code: "rate-limited", message: "x", transient: true, retry_after_s: 2 } });
  const outcome = (status: number, body: string, header: string | null): unknown =>
    outcomesOf(status, body, 1, header).map(({ again, retryAfterS }) => [again, retryAfterS])[0];
  assert.deepEqual(outcome(429, limited, null), [true, 2]);
  assert.deepEqual(outcome(429, limited, "7"), [true, 7]);
  assert.deepEqual(outcome(429, "", "7"), [true, 7]);
  assert.deepEqual(outcome(429, "", "Wed, 21 Oct 2015 07:28:00 GMT"), [true, 0]);
});

test("pauses double up to five seconds, and are never shorter than the service asks", () => {
  assert.deepEqual([0, 1, 2, 6, 100].map((attempt) => pauseS(attempt, 0, 1)), [0.1, 0.2, 0.4, 5, 5]);
  assert.equal(pauseS(0, 0, 0), 0.05);
  assert.deepEqual([pauseS(0, 8, 0), pauseS(0, 8, 1)], [8, 12]);
});

test("a request says since when the first of its updates waits, also when it is repeated", async () => {
  const stamps: number[] = [];
  const server = createServer((request, response) => {
    stamps.push(Number(request.headers["roskva-published"]));
    void text(request).then((body) => {
      const failed = stamps.length === 1;
      const answer = failed ? { error: OVERLOADED } : durable(JSON.parse(body), stamps.length).body;
      response.writeHead(failed ? 503 : 200, { "Content-Type": "application/json" }).end(JSON.stringify(answer));
    });
  });
  await new Promise<void>((ready) => server.listen(0, "127.0.0.1", ready));
  try {
    const publisher = new Publisher(`http://127.0.0.1:${(server.address() as { port: number }).port}`, { application: "shop" });
    const beforeUs = Date.now() * 1000;
    await publisher.publish("a", 1);
    assert.equal(stamps.length, 2);
    assert.ok(stamps.every((stamp) => Number.isInteger(stamp) && stamp >= beforeUs && stamp <= Date.now() * 1000));
    assert.equal(stamps[1], stamps[0]);
    await publisher.close();
  } finally {
    server.close();
    server.closeAllConnections();
  }
});
