/**
 * What a LiveCache has of each object, beside what its value is worth (freshness.ts); and what a fetch answered.
 */

import { checkStated, type Name } from "./core/model.ts";
import type { Attempt, Entry } from "./freshness.ts";

/** A fetch under way. It belongs to the cache: who waits for it may give up, and it goes on. */
export interface Flight<V> {
  readonly attempt: Attempt;
  readonly abort: AbortController;
  readonly landed: Promise<V>;
}

export interface Slot<V> {
  readonly name: Name;
  readonly entry: Entry<V>;
  encoded: unknown; // the entry's value, until the store has it
  registered: boolean; // by this cache
  warned: boolean; // that it is not
  flight: Flight<V> | null;
  refreshing: boolean;
  wake: (() => void) | null; // ends the pause before the next fetch in the background
  gone: boolean; // evicted
}

export function newSlot<V>(name: Name, entry: Entry<V>): Slot<V> {
  return { name, entry, encoded: undefined, registered: false, warned: false, flight: null, refreshing: false, wake: null, gone: false };
}

export interface Fetched<V> {
  readonly value: V;
  readonly version: bigint | null;
}

export function fetchedOf<V>(answer: unknown, versioned: boolean): Fetched<V> {
  if (!versioned) return { value: answer as V, version: null };
  if (typeof answer !== "object" || answer === null || !("value" in answer) || !("version" in answer)) {
    throw new TypeError("fetch must answer { value, version }, since the cache is versioned");
  }
  const version = Number.isSafeInteger(answer.version) ? BigInt(answer.version as number) : (answer.version as bigint);
  checkStated(version);
  return { value: answer.value as V, version };
}
