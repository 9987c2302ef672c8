/**
 * What a LiveCache is given: its client, what `fetch` is asked and answers, and the options. Types only.
 */

import type { Clock } from "./clock.ts";
import type { Pauses } from "./freshness.ts";
import type { Registrations } from "./registrations.ts";
import type { CacheStore, Codec } from "./stores/cache.ts";

/** A client, and if it has them its clock, and events that say that something about its connection changed. */
export type CacheClient = Registrations & {
  readonly clock?: Clock;
} & Partial<Pick<EventTarget, "addEventListener" | "removeEventListener">>;

/** Given to `fetch`: aborted when its answer is not wanted any more, because it takes too long or the cache was closed. */
export interface Asked {
  readonly signal: AbortSignal;
}

/** A value, and the version that the backend publishes for it. */
export interface Versioned<V> {
  readonly value: V;
  readonly version: bigint | number;
}

export interface LiveCacheOptions {
  /** At most so many objects; the least recently used one goes, and is unregistered. Who waits for its fetch gets the value. 10,000 */
  readonly entriesMax?: number;
  /** After a notification: fetch in the background at once, or at the next use. */
  readonly refresh?: "background" | "on-use";
  /**
   * While the service says nothing, a value is good for so long after it was last known to be current; then `get` fetches. 10;
   * 0: fetch always; Infinity: never.
   */
  readonly outOfSyncS?: number;
  /** What `get` does when the value is outdated and the fetch fails: answer the old value, or (false) throw FetchFailed. */
  readonly serveIfFailed?: boolean;
  /** Where values are kept over a restart of the application, and how they become what the store can hold. */
  readonly store?: CacheStore | null;
  readonly codec?: Codec;
  /** With values from a store: how long the first `get` waits for the service to say that they are current. 2 */
  readonly startWaitS?: number;
  /** A fetch that takes longer failed. 30 */
  readonly fetchTimeoutS?: number;
  /** Fetches in the background at a time. 8 */
  readonly refreshesMax?: number;
  /** Between fetches that fail. */
  readonly pauses?: Pauses;
  /** Told of what no caller is told of: a fetch in the background that failed, a store that did. console.warn */
  readonly warn?: (message: string, error: unknown) => void;
}
