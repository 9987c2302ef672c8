/** Readers, writers, lost connections, evictions, failures, lagging replicas, a full disk and restarts, by chance: nothing is ever served
 * that is older than what the service was acknowledged, and in the end everything is fresh. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { type Client } from "../src/client.ts";
import { type CacheClient, LiveCache, MemoryStore } from "../src/livecache.ts";
import { type Handler } from "../src/registrations.ts";
import { MemoryState } from "../src/stores/memory.ts";
import { Service } from "../src/testing/index.ts";
import { PAUSES } from "./scene.ts";

const NAMES = [..."abcdef"];
const SEEDS = 16;

function chance(seed: number): () => number {
  let state = seed * 2 + 1;
  return () => (state = (state * 48_271) % 0x7fffffff) / 0x7fffffff;
}

class World {
  readonly dice: () => number;
  readonly service: Service;
  readonly truth = new Map(NAMES.map((name) => [name, 0]));
  readonly floor = new Map<string, number>(); // what was acknowledged of the registration is at least so new
  readonly state = new MemoryState();
  readonly versioned: boolean;
  readonly store: MemoryStore | null;
  client!: Client;
  cache!: LiveCache<number>;
  connected = true;
  unknowns = new Set<unknown>(); // told, and not acknowledged
  served = 0;
  acknowledged = 0;

  constructor(seed: number) {
    this.dice = chance(seed);
    this.service = new Service({ seed, delayS: seed % 3 ? 0.01 : 0, loss: seed % 5 ? 0.05 : 0, config: { retry_min_s: 0.5 } });
    this.versioned = seed % 2 === 0;
    const { dice } = this;
    class Sometimes extends MemoryStore {
      override async write(...changes: Parameters<MemoryStore["write"]>): Promise<void> {
        if (dice() < 0.1) throw new Error("no space left");
        await super.write(...changes);
      }
    }
    this.store = seed % 4 < 2 ? new Sometimes({ durable: true }) : null;
    this.begin();
  }

  one<T>(among: readonly T[]): T {
    return among[Math.floor(this.dice() * among.length)] as T;
  }

  begin(): void {
    this.client = this.service.client("demo", { device: "phone", state: this.state });
    this.connected = true;
    const options = { entriesMax: 4, store: this.store, pauses: PAUSES, outOfSyncS: 3, warn: () => {} };
    const fetch = (name: string): Promise<number> => this.fetch(name);
    this.cache = this.versioned
      ? new LiveCache<number>(this.listening(), async (name) => answer(await fetch(name)), { ...options, versioned: true })
      : new LiveCache<number>(this.listening(), fetch, options);
  }

  /** The client, with a note of what is acknowledged through it. An unknown stands for what was true when it came. */
  listening(): CacheClient {
    const { client, service, floor, truth } = this;
    const standing = new Map<unknown, number>();
    this.unknowns.clear();
    const raise = (name: string, version: number): void => void floor.set(name, Math.max(floor.get(name) ?? 0, version));
    let heard: Handler | null = null;
    return {
      clock: service.clock,
      now: () => client.now(),
      toldUntil: (id) => client.toldUntil(id),
      register: (id, handler, options) => {
        if (options?.version !== undefined) raise(id, Number(options.version));
        heard ??= (told) => {
          if (told.version === null) this.unknowns.add(told.name);
          standing.set(told, Number(told.version ?? truth.get(told.name)));
          return handler?.(told);
        };
        return client.register(id, heard, options);
      },
      unregister: (id, options) => {
        floor.set(id, 0);
        return client.unregister(id, options);
      },
      release: (id) => client.release(id),
      acknowledge: (told) => {
        this.acknowledged += 1;
        if (told.version === null) this.unknowns.delete(told.name);
        raise(told.name, standing.get(told) ?? 0);
        client.acknowledge(told);
      },
    };
  }

  async fetch(name: string): Promise<number> {
    await this.pause(this.dice() * 0.5);
    const { cache } = this;
    // A replica may lag where that can be seen: something is held, and no unknown is told.
    const seen = this.versioned && cache.peek(name) !== undefined && !this.unknowns.has(name);
    const lag = seen && this.dice() < 0.2 ? 1 : 0;
    const version = Math.max(0, (this.truth.get(name) ?? 0) - lag);
    await this.pause(this.dice() * 2);
    if (this.dice() < 0.2) throw new Error("no route");
    return version;
  }

  pause(seconds: number): Promise<void> {
    return new Promise((done) => void this.service.clock.after(seconds, done));
  }

  async read(): Promise<void> {
    const name = this.one(NAMES);
    let value: number;
    try {
      value = await this.cache.get(name);
    } catch (error) {
      assert.ok(["fetch-failed", "client-stopped"].includes((error as { code: string }).code), String(error));
      return;
    }
    this.served += 1;
    assert.ok(value >= (this.floor.get(name) ?? 0), `${name}: served ${value}, acknowledged ${this.floor.get(name)}`);
  }

  async step(readers: Promise<void>[]): Promise<void> {
    await this.service.advance(this.dice());
    const event = Math.floor(this.dice() * 12);
    if (event < 3) {
      const name = this.one(NAMES);
      const version = (this.truth.get(name) ?? 0) + 1;
      this.truth.set(name, version);
      if (this.dice() < 0.3) this.service.loseVersion("demo", name);
      else this.service.publish("demo", name, version);
    } else if (event === 3 && this.connected) {
      this.service.disconnect(this.client);
      this.connected = false;
    } else if (event < 6 && !this.connected) {
      this.service.reconnect(this.client);
      this.connected = true;
    } else if (event === 6 && this.dice() < 0.3) {
      await this.service.run(this.cache.close());
      await this.service.run(this.client.close());
      this.begin();
    } else {
      for (let i = 0; i < 3; i++) readers.push(this.read());
    }
  }
}

const answer = (version: number): { value: number; version: number } => ({ value: version, version });

for (let seed = 0; seed < SEEDS; seed++) {
  test(`nothing older than what was acknowledged is ever served, seed ${seed}`, async (t) => {
    t.mock.method(Math, "random", chance(seed + 1_000)); // the clients' and the cache's
    const world = new World(seed);
    const { service } = world;
    const readers: Promise<void>[] = [];
    for (let i = 0; i < 150; i++) await world.step(readers);
    service.reconnect(world.client);
    service.loss = 0;
    await service.advance(60);
    await service.run(Promise.all(readers));
    for (const name of NAMES) {
      const fresh = (): boolean => world.cache.peek(name) === world.truth.get(name) && world.cache.state(name).state === "fresh";
      for (let i = 0; i < 100 && !fresh(); i++) {
        await service.run(world.cache.get(name).catch(() => {}));
        await service.advance(1);
      }
      assert.ok(fresh(), `${name} never became fresh`);
    }
    assert.ok(world.served > 50 && world.acknowledged > 4, `${world.served} served, ${world.acknowledged} acknowledged`);
    await world.cache.close();
    await service.close();
  });
}
