/** WebSockets that fail, long polls in their place, and back: with sockets and a `fetch` that do what the test says. */

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { type Link, NotConnected } from "../src/channels/link.ts";
import type { SocketClass } from "../src/channels/websocket.ts";
import { Connector } from "../src/connector.ts";
import type { ClientCore } from "../src/core/core.ts";
import { DEFAULTS } from "../src/core/messages.ts";
import type { SessionOptions } from "../src/session.ts";
import { HandClock } from "../src/testing/index.ts";

const options = (_urls: string[], channel: "auto" | "websocket" | "long-poll", _socket: SocketClass | undefined, clock: HandClock): SessionOptions =>
  ({ _urls, channel, _socket, clock }) as Partial<SessionOptions> as SessionOptions; // what a connector looks at

const real = globalThis.fetch;
afterEach(() => void (globalThis.fetch = real));

type Close = { code: number; wasClean: boolean };

function sockets(accepts: () => boolean): { Socket: SocketClass; made: { url: string; sent: string[]; end(event: Close): void }[] } {
  const made: { url: string; sent: string[]; end(event: Close): void }[] = [];
  class Socket {
    onopen: (() => void) | null = null;
    onmessage: unknown = null;
    onclose: ((event: Close) => void) | null = null;
    onerror: unknown = null;
    readonly sent: string[] = [];
    readonly url: string;

    constructor(url: string) {
      this.url = url;
      made.push(this);
      queueMicrotask(() => (accepts() ? this.onopen?.() : this.onclose?.({ code: 1006, wasClean: false })));
    }

    send(data: string): void {
      this.sent.push(data);
    }

    end(event: Close): void {
      this.onclose?.(event);
    }

    close(): void {}
  }
  return { Socket, made };
}

interface Asked {
  readonly method: string;
  readonly url: string;
  readonly body: string;
}

/** Long polls that work: `answers` are what the next GETs bring; later ones wait for ever. */
function polls(answers: { status: number; body?: string }[] = [], post: () => number = () => 204): Asked[] {
  const asked: Asked[] = [];
  globalThis.fetch = ((url: string, { method = "GET", body = "", signal }: RequestInit) => {
    asked.push({ method, url, body: String(body) });
    const reply = (status: number, text: string | null): Promise<Response> => Promise.resolve(new Response(text, { status }));
    if (url.endsWith("/v1/channels")) return reply(201, '{"id":"c1","wait_s":50}');
    if (method === "DELETE") return reply(204, null);
    if (method === "POST") return reply(post(), null);
    const next = answers.shift();
    if (next) return reply(next.status, next.body ?? null);
    return new Promise((_, reject) => signal?.addEventListener("abort", () => reject(new Error("aborted"))));
  }) as typeof fetch;
  return asked;
}

async function fails(connector: Connector): Promise<NotConnected> {
  const error = await connector._connect().then(
    () => assert.fail("it connected"),
    (why: unknown) => why,
  );
  assert.ok(error instanceof NotConnected, String(error));
  return error;
}

test("a WebSocket first; after two failures long polls, and back when there is one", async () => {
  let up = false;
  const { Socket, made } = sockets(() => up);
  const asked = polls([{ status: 200, body: '{"a":1}\n\n{"b":2}\n' }]);
  const clock = new HandClock();
  const connector = new Connector(options(["http://x/base"], "auto", Socket, clock), new AbortController().signal);
  await fails(connector);
  await fails(connector);
  assert.deepEqual(made.map(({ url }) => url), ["ws://x/base/v1/channel", "ws://x/base/v1/channel"]);
  const link = await connector._connect();
  assert.equal(connector._kind, "long-poll");
  const heard: string[] = [];
  const over = connector._carry(link, (data) => {
    link._heard = true;
    heard.push(data);
  });
  link._send("one");
  link._send("two");
  await clock.settled();
  assert.deepEqual(heard, ['{"a":1}', '{"b":2}']);
  assert.deepEqual(asked.filter(({ method, body }) => method === "POST" && body), [
    { method: "POST", url: "http://x/base/v1/channels/c1", body: "one\ntwo" },
  ]);
  await clock.advance(30 * 1.3); // there is still none
  assert.equal(made.length, 3);
  up = true;
  await clock.advance(60 * 1.3);
  assert.equal(await over, "exchanged for a WebSocket");
  assert.equal(asked.at(-1)?.method, "DELETE");
  assert.equal(connector._pauseS({ config: DEFAULTS, spreadS: 0 } as ClientCore, 0), 0); // there is one already
  const back = await connector._connect();
  assert.deepEqual([connector._kind, made.length], ["websocket", 4]);
  const ended = connector._carry(back, () => {});
  made[3]?.end({ code: 1001, wasClean: true });
  assert.equal(await ended, "closed by the service with 1001");
  assert.equal(back._cut, false);
});

test("long polls end with the service's 410, or when three in a row fail", async () => {
  for (const [answers, why, cut] of [
    [[{ status: 410 }], "closed by the service", false],
    [[{ status: 502 }, { status: 502 }, { status: 502 }], "broken: 3 polls failed, the last with 502", true],
  ] as const) {
    polls([...answers]);
    const connector = new Connector(options(["http://x"], "long-poll", undefined, new HandClock()), new AbortController().signal);
    const link = await connector._connect();
    assert.equal(await connector._carry(link, () => {}), why);
    assert.equal(link._cut, cut);
  }
});

test("a request that is too large is made again with each message alone, one that is refused is dropped", async () => {
  const statuses = [413, 204, 400];
  const asked = polls([], () => statuses.shift() ?? 204);
  const connector = new Connector(options(["http://x"], "long-poll", undefined, new HandClock()), new AbortController().signal);
  const link = await connector._connect();
  const over = connector._carry(link, () => {});
  link._send("one");
  link._send("two");
  await link._drained();
  const said = asked.filter(({ method, body }) => method === "POST" && body).map(({ body }) => body);
  assert.deepEqual(said, ["one\ntwo", "one", "two"]);
  link._hangUp();
  await over;
});

test("a long poll whose message cannot be taken ends the connection", async () => {
  polls([{ status: 200, body: '{"a":1}' }]);
  const connector = new Connector(options(["http://x"], "long-poll", undefined, new HandClock()), new AbortController().signal);
  const link = await connector._connect();
  const why = await connector._carry(link, () => {
    throw new Error("a defect");
  });
  assert.deepEqual([why, link._cut], ["broken: a defect", true]);
});

test("a long poll that is hung up while it pauses asks nothing more", async () => {
  const asked = polls([], () => 503);
  const connector = new Connector(options(["http://x"], "long-poll", undefined, new HandClock()), new AbortController().signal);
  const link = await connector._connect();
  const over = connector._carry(link, () => {});
  const said = (): number => asked.filter(({ method, body }) => method === "POST" && body).length;
  link._send("one");
  while (said() === 0) await new Promise((done) => setImmediate(done));
  link._hangUp();
  await over;
  assert.equal(said(), 1);
});

test("without a class of WebSockets `auto` means long polls; several addresses take turns", async () => {
  globalThis.fetch = () => Promise.reject(new TypeError("fetch failed"));
  const connector = new Connector(options(["http://a", "http://b"], "auto", undefined, new HandClock()), new AbortController().signal);
  const tried: string[] = [];
  for (let attempt = 0; attempt < 4; attempt++) {
    const { _why: why } = await fails(connector);
    assert.equal(why, "unreachable");
    tried.push(`${connector._kind} ${connector.url}`);
  }
  assert.deepEqual(tried, ["long-poll http://a", "long-poll http://a", "long-poll http://a", "long-poll http://b"]);
});

test("work is done before what is sent after it, and in any case; what does not fit is dropped", async () => {
  const { Socket, made } = sockets(() => true);
  const connector = new Connector(options(["http://x"], "websocket", Socket, new HandClock()), new AbortController().signal);
  const link: Link = await connector._connect();
  const over = connector._carry(link, () => {});
  let release = (): void => {};
  link._send("before");
  link._first(() => new Promise<void>((done) => (release = done)));
  for (let count = 0; count < 2_000; count++) link._send("after");
  await new Promise((done) => setImmediate(done));
  assert.deepEqual(made[0]?.sent, ["before"]);
  release();
  await link._drained();
  assert.ok((made[0]?.sent.length ?? 0) <= 1_001 && (made[0]?.sent.length ?? 0) > 900);
  let done = 0;
  link._first(async () => void (done += 1));
  link._hangUp();
  link._first(async () => void (done += 1));
  await over;
  assert.equal(done, 2);
});
