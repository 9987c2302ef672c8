/** A service of roskva/testing, a backend that takes time and fails, a client and a LiveCache: what the tests of the cache play on. */

import { type Client } from "../src/client.ts";
import { LiveCache, type LiveCacheOptions, type Versioned } from "../src/livecache.ts";
import { MemoryState } from "../src/stores/memory.ts";
import { type CacheStore } from "../src/stores/cache.ts";
import { Service } from "../src/testing/index.ts";

export const PAUSES = { minS: 0.5, maxS: 4, triesMax: 5 };

export interface SceneOptions extends LiveCacheOptions {
  readonly versioned?: boolean;
  /** What is left of an earlier run. */
  readonly scene?: Pick<Scene, "state" | "service" | "fetches">;
}

export class Scene {
  readonly service: Service;
  readonly versions = new Map<string, number>(); // the backend's
  readonly fetches: string[];
  readonly warnings: string[] = [];
  readonly state: MemoryState;
  takesS = 0.1;
  broken = false;
  lag = 0; // versions that the replica is behind
  client!: Client;
  cache!: LiveCache<unknown>;
  readonly #options: SceneOptions;

  constructor(options: SceneOptions = {}) {
    this.#options = options;
    this.service = options.scene?.service ?? new Service({ config: { retry_min_s: 0.5 } });
    this.state = options.scene?.state ?? new MemoryState();
    this.fetches = options.scene?.fetches ?? [];
    this.begin();
  }

  begin(): void {
    this.client = this.service.client("demo", { device: "phone", state: this.state });
    const { versioned = false, scene: _, ...options } = this.#options;
    const warn = (message: string): void => void this.warnings.push(message);
    const more = { pauses: PAUSES, warn, ...options };
    this.cache = versioned
      ? new LiveCache<unknown>(this.client, (name) => this.fetch(name), { ...more, versioned })
      : new LiveCache<unknown>(this.client, async (name) => (await this.fetch(name)).value, more);
  }

  async fetch(name: string): Promise<Versioned<unknown>> {
    this.fetches.push(name);
    const version = Math.max(0, (this.versions.get(name) ?? 0) - this.lag);
    if (this.takesS > 0) await new Promise<void>((done) => void this.service.clock.after(this.takesS, done));
    if (this.broken) throw new Error("no route");
    return { value: `${name}@${version}`, version };
  }

  write(name: string): void {
    const version = (this.versions.get(name) ?? 0) + 1;
    this.versions.set(name, version);
    this.service.publish("demo", name, version);
  }

  get(name: string): Promise<unknown> {
    return this.service.run(this.cache.get(name));
  }

  async wait(seconds = 3): Promise<void> {
    await this.service.advance(seconds);
  }

  /** Notifications that the service has sent. */
  get told(): number {
    return this.service.notified;
  }

  get owed(): number {
    return this.service.unacknowledged("demo");
  }

  /** The next run of the application. */
  async restart(): Promise<void> {
    await this.end();
    this.begin();
  }

  async end(): Promise<void> {
    await this.cache.close();
    await this.service.settled(); // what the client still has to say
    await this.client.close();
    await this.service.settled();
  }
}

export function storing(store: CacheStore, more: SceneOptions = {}): Scene {
  return new Scene({ store, startWaitS: 20, ...more });
}
