/**
 * `node test/real-service.ts URL FOLDER`: the client and the publisher against a real service, over every channel, with connections that
 * are cut. Prints one line for each thing that held, and ends with status 1 at the first that does not. tests/e2e runs it.
 */

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { connect, createServer, type Server, type Socket } from "node:net";
import { join } from "node:path";
import { Client } from "../src/client.ts";
import type { ClientOptions } from "../src/client.ts";
import { FileState, Publisher } from "../src/node.ts";
import { MemoryState } from "../src/stores/memory.ts";

const [url = "", folder = ""] = process.argv.slice(2);
const run = Math.random().toString(36).slice(2, 8);
const WAIT_MS = 60_000;

/** Passes everything on to the service, until it is told to cut; `websockets` false: as a proxy that does not know them. */
class Relay {
  readonly #ends = new Set<Socket>();
  readonly #server: Server;
  opened = 0;

  constructor(websockets: boolean) {
    const { hostname, port } = new URL(url);
    this.#server = createServer((near) => {
      this.opened += 1;
      const far = connect(Number(port), hostname);
      for (const end of [near, far]) {
        this.#ends.add(end);
        end.on("error", () => {}).on("close", () => (near.destroy(), far.destroy(), this.#ends.delete(end)));
      }
      near.on("data", (data) => {
        if (!websockets && data.includes("/v1/channel ")) near.end("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        else far.write(data);
      });
      far.pipe(near);
    });
  }

  async start(): Promise<string> {
    await new Promise<void>((ready) => this.#server.listen(0, "127.0.0.1", ready));
    return `http://127.0.0.1:${(this.#server.address() as { port: number }).port}`;
  }

  get connections(): number {
    return this.#ends.size / 2;
  }

  cut(): void {
    for (const end of this.#ends) end.destroy();
  }

  close(): void {
    this.#server.close();
    this.cut();
  }
}

async function until(happened: () => boolean): Promise<void> {
  for (const deadline = Date.now() + WAIT_MS; !happened(); ) {
    assert.ok(Date.now() < deadline, `not within ${WAIT_MS} ms: ${happened}`);
    await new Promise((done) => setTimeout(done, 10));
  }
}

const publisher = new Publisher(url, { application: "demo" });

async function overOneChannel(channel: "websocket" | "long-poll" | "auto", expected: string, websockets: boolean): Promise<string[]> {
  const held: string[] = [];
  const relay = new Relay(websockets);
  const path = join(folder, `${channel}-${expected}.state`);
  const options: ClientOptions = { application: "demo", channel, state: new FileState(path) };
  const service = await relay.start();
  const client = new Client(service, options);
  const name = `typescript-${run}-${channel}-${expected}`;
  const seen: (bigint | null)[] = [];
  await client.register(name, ({ version }) => void seen.push(version));
  await client.synced(WAIT_MS);
  assert.equal(client.channel, expected);
  assert.equal(client.url, service);
  await publisher.publish(name, 1);
  await until(() => seen.at(-1) === 1n);
  held.push(`${expected} as ${channel}: told`);

  relay.cut();
  if (expected === "websocket") await until(() => !client.connected); // polls go on, over new connections
  assert.deepEqual(await publisher.publishMany([[name, 2n], [`${name}-other`, 1]]), [null, null]);
  await until(() => seen.at(-1) === 2n);
  await client.synced(WAIT_MS);
  held.push(`${expected} as ${channel}: told after the connection was cut`);

  const { device } = client;
  await client.close();
  const again = new Client(service, { ...options, state: new FileState(path) });
  await again.register(name);
  await again.synced(WAIT_MS);
  assert.equal(again.device, device);
  await publisher.publish(name, 3);
  for await (const { version } of again) {
    if (version === 2n) continue; // a repeat: the pipeline came with it after the session that had acknowledged it was over
    assert.equal(version, 3n);
    break;
  }
  held.push(`${expected} as ${channel}: the same client after a restart`);

  await again.forget(WAIT_MS);
  assert.equal(existsSync(path), false);
  await assert.rejects(again.register(name), { code: "client-stopped" });
  held.push(`${expected} as ${channel}: forgotten`);
  relay.close();
  return held;
}

async function tabs(): Promise<string[]> {
  const held: string[] = [];
  const relay = new Relay(true);
  const service = await relay.start();
  const state = new MemoryState();
  const name = `typescript-${run}-tabs`;
  const seen: string[] = [];
  const open = (tab: string): Client => {
    const client = new Client(service, { application: "demo", device: `tabs-${run}`, state, tabs: true });
    void client.register(name, ({ version }) => void seen.push(`${tab}=${version}`));
    return client;
  };
  const all = ["a", "b", "c"].map(open);
  await Promise.all(all.map((client) => client.synced(WAIT_MS)));
  assert.equal(relay.connections, 1);
  await publisher.publish(name, 1);
  await until(() => ["a=1", "b=1", "c=1"].every((one) => seen.includes(one)));
  held.push("tabs: three of them over one connection");
  await all[0]?.close();
  await publisher.publish(name, 2);
  await until(() => seen.includes("b=2") && seen.includes("c=2"));
  assert.equal(relay.connections, 1);
  assert.equal(seen.includes("a=2"), false);
  await until(() => all[1]?.inSync === true && all[2]?.inSync === true);
  held.push("tabs: another leads when the first is closed");
  await all[2]?.forget(WAIT_MS);
  await until(() => relay.connections === 0);
  held.push("tabs: one signs out, and all have ended");
  relay.close();
  return held;
}

const stories = [
  overOneChannel("websocket", "websocket", true),
  overOneChannel("long-poll", "long-poll", true),
  overOneChannel("auto", "long-poll", false),
  tabs(),
];
for (const held of await Promise.all(stories)) for (const line of held) console.log(line);
await publisher.close();
