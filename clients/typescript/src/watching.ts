/**
 * Objects of a LiveCache that somebody shows, a page for example: told of every change of value, state or error, and kept in use.
 *
 * Whatever is shown and not fresh is asked for again and again: as the cache allows, and after failures with pauses that grow. So a page
 * without the service is one that polls, and one without its backend shows what it has, and the error.
 */

import type { Clock } from "./clock.ts";
import type { Name } from "./core/model.ts";
import { fetchPauseS, type Pauses, type State } from "./freshness.ts";

/** What there is to show. `value` is undefined until the first fetch; `error` is that of the last fetch, if it failed. */
export interface Live<V> {
  readonly value: V | undefined;
  readonly state: State;
  readonly error: Error | null;
}

interface Watch<V> {
  readonly callbacks: Set<() => void>;
  live: Live<V>;
  error: Error | null;
  failures: number; // in a row
  asking: boolean;
  cancel: (() => void) | null; // of the timer, after which it is asked for again
}

const AGAIN_S = 1;
// Of a client: after any of them, the state of what is shown may be another.
const EVENTS = ["connected", "disconnected", "insync", "outofsync", "registered", "unregistered", "stopped"];
// These name the object; there are as many of them as there are objects.
const OF_ONE = ["registered", "unregistered"];
type Listens = Partial<Pick<EventTarget, "addEventListener" | "removeEventListener">>;

export class Watching<V> {
  readonly #clock: Clock;
  readonly #pauses: Pauses;
  readonly #read: (name: Name) => Omit<Live<V>, "error">;
  readonly #ask: (name: Name) => Promise<V>;
  readonly #warn: (message: string, error: unknown) => void;
  readonly #watches = new Map<Name, Watch<V>>();
  #heard: Listens | null = null;
  #closed = false;

  /** `read` says what the cache has; `ask` is its `get`; `warn` is told of callbacks that fail. */
  constructor(
    clock: Clock,
    pauses: Pauses,
    read: (name: Name) => Omit<Live<V>, "error">,
    ask: (name: Name) => Promise<V>,
    warn: (message: string, error: unknown) => void,
  ) {
    this.#clock = clock;
    this.#pauses = pauses;
    this.#read = read;
    this.#ask = ask;
    this.#warn = warn;
  }

  listen(client: Listens): void {
    this.#heard = client;
    for (const event of EVENTS) client.addEventListener?.(event, this.#happened);
  }

  close(): void {
    this.#closed = true;
    for (const event of EVENTS) this.#heard?.removeEventListener?.(event, this.#happened);
    for (const watch of this.#watches.values()) watch.cancel?.();
    this.#watches.clear();
  }

  has(name: Name): boolean {
    return this.#watches.has(name);
  }

  subscribe(name: Name, changed: () => void): () => void {
    if (this.#closed) return () => {};
    let watch = this.#watches.get(name);
    if (watch === undefined) {
      const live = { ...this.#read(name), error: null };
      watch = { callbacks: new Set(), live, error: null, failures: 0, asking: false, cancel: null };
      this.#watches.set(name, watch);
      void this.#tend(name, watch);
    }
    const { callbacks } = watch;
    const callback = (): void => changed(); // one of its own, should the same function be given twice
    callbacks.add(callback);
    return () => {
      callbacks.delete(callback);
      if (callbacks.size > 0 || this.#watches.get(name) !== watch) return;
      watch.cancel?.();
      this.#watches.delete(name);
    };
  }

  live(name: Name): Live<V> {
    return this.#watches.get(name)?.live ?? { ...this.#read(name), error: null };
  }

  /** Something about it may have changed. */
  look(name: Name): void {
    const watch = this.#watches.get(name);
    if (watch === undefined || this.#closed) return;
    this.#tell(name, watch);
    if (watch.live.state !== "fresh" && !watch.asking && watch.error === null) void this.#tend(name, watch);
  }

  readonly #happened = (event: Event): void => {
    if (OF_ONE.includes(event.type)) return this.look((event as CustomEvent<{ name: Name }>).detail.name);
    for (const name of [...this.#watches.keys()]) this.look(name);
  };

  #tell(name: Name, watch: Watch<V>): void {
    const live = { ...this.#read(name), error: watch.error };
    if (same(live, watch.live)) return;
    watch.live = live;
    for (const callback of [...watch.callbacks]) {
      try {
        callback();
      } catch (error) {
        this.#warn(`somebody who is told of ${name} failed`, error);
      }
    }
  }

  async #tend(name: Name, watch: Watch<V>): Promise<void> {
    watch.cancel?.();
    watch.cancel = null;
    watch.asking = true;
    try {
      await this.#ask(name);
      watch.error = null;
      watch.failures = 0;
    } catch (error) {
      watch.error = error instanceof Error ? error : new Error(String(error));
      watch.failures += 1;
    }
    watch.asking = false;
    if (this.#closed || this.#watches.get(name) !== watch) return;
    this.#tell(name, watch);
    if (this.#watches.get(name) !== watch) return; // a callback may end it
    if (watch.error !== null || watch.live.state !== "fresh") {
      const pauseS = Math.max(AGAIN_S, watch.failures === 0 ? 0 : fetchPauseS(this.#pauses, watch.failures, Math.random()));
      watch.cancel = this.#clock.after(pauseS, () => void this.#tend(name, watch));
    }
  }
}

/** Nobody could tell them apart. */
export function same<V>(one: Live<V>, other: Live<V>): boolean {
  return one.value === other.value && one.state === other.state && one.error === other.error;
}
