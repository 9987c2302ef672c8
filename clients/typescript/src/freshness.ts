/**
 * What a cached value is worth: fresh, stale or unknown; when it must be fetched, and what may be acknowledged (Thialfi 3.1 to 3.3).
 * The twin of src/roskva/client/freshness.py: a change of one is a change of the other.
 *
 * Theory of operation. A notification is an obligation: a value must come that is at least as new. Two things show that one is:
 *
 *     the fetch that brought it began after the notification came        (one that was under way before does not count)
 *     it has a version of its own, of the same epoch and not smaller     (not for an unknown, which names no version)
 *
 * and one thing shows that it is not, however late the fetch began: a version of its own that is smaller than the one notified, or than
 * the one held. Then a replica answered that lags behind, and the fetch is repeated after a pause.
 *
 *     owed              obligations that the value does not meet: the entry is stale, or unknown if that is all that was told
 *     met               notifications whose obligation is met: to be acknowledged as soon as the store holds the value
 *     acknowledged      by the caller, with what `stored` and `noticed` answer; never before
 *
 * The caller's duties: call `begin` before it calls the application's fetch, and `adopt` or `failed` after it; call `stored` when the store
 * holds the value that `adopt` took; one fetch at a time. `now` never falls. `toldUntil` is up to when the service told of every change of
 * this object: now, while the client is connected and in sync; null, if the object's registration is not confirmed.
 *
 * Pure: no clock, no dice, no waiting.
 */

import type { Notification } from "./core/actions.ts";

const NEVER = -Infinity;
const DOUBLINGS_MAX = 32;

/**
 * fresh: the service has told of no later version, and would. stale: a later version was told of, and not yet fetched. unknown: there is
 * no value; or there may be a later one: the service said so, or says nothing.
 */
export type State = "fresh" | "stale" | "unknown";

/** What `LiveCache.state` answers: the state, and for how many seconds it has been so. */
export interface Standing {
  readonly state: State;
  readonly forS: number;
}

/** What to do for whoever asks. fail: the last fetch failed, and it is too early for another. */
export type Choice = "serve" | "fetch" | "fail";

/** Between fetches of an object that fail or answer too old a value. After `triesMax` in a row the next use tries again. */
export interface Pauses {
  readonly minS: number;
  readonly maxS: number;
  readonly triesMax: number;
}

export const PAUSES: Pauses = { minS: 0.1, maxS: 30, triesMax: 12 };

export function fetchPauseS(pauses: Pauses, tries: number, dice: number): number {
  const boundS = Math.min(pauses.maxS, pauses.minS * 2 ** Math.min(tries, DOUBLINGS_MAX));
  return boundS * (0.5 + dice / 2);
}

/** A fetch: what had been noticed when it began, and the epoch in which versions were counted, as far as was known. */
export interface Attempt {
  readonly mark: number;
  readonly began: number;
  readonly epoch: number;
}

interface Owed {
  readonly mark: number;
  readonly notification: Notification | null; // null: the application itself said that the value is outdated
}

/** One object of the cache. */
export class Entry<V> {
  value: V | undefined = undefined;
  present = false;
  version: bigint | null = null;
  epoch = 0;
  began = NEVER; // the fetch that brought the value; never: the store of an earlier run
  freshSince = NEVER;
  staleSince = NEVER;
  kept = false; // the store holds the value
  tries = 0; // in a row, without success
  retryAt = NEVER;
  lagging = false; // the last fetch answered, but too old a value
  trouble = ""; // why the last fetch failed
  readonly #opened: number;
  readonly #pauses: Pauses;
  #mark = 0;
  #owed: Owed[] = [];
  #met: Notification[] = [];

  constructor(opened: number, pauses: Pauses = PAUSES) {
    this.#opened = opened;
    this.#pauses = pauses;
  }

  /** The store of an earlier run has it. What that run acknowledged, the store held; what it did not, comes again. */
  restored(value: V, version: bigint | null, epoch: number): void {
    this.value = value;
    this.version = version;
    this.epoch = epoch;
    this.present = this.kept = true;
    this.freshSince = this.#opened;
  }

  /** Something waits for a fetch, or for the store. */
  get due(): boolean {
    return this.#owed.length > 0 || this.#met.length > 0;
  }

  get unacknowledged(): Notification[] {
    return [...this.#owed.flatMap((one) => one.notification ?? []), ...this.#met];
  }

  /** The service tells of a change. Answers what may be acknowledged at once: a version that the store holds already. */
  noticed(now: number, notification: Notification): Notification[] {
    if (this.#owed.length === 0) this.staleSince = now;
    this.#owed = this.#owed.filter((one) => one.notification === null || !replaces(notification, one.notification));
    this.#met = this.#met.filter((one) => !replaces(notification, one));
    if (this.present && reaches(this.version, this.epoch, notification)) {
      if (this.kept) return [notification];
      this.#met.push(notification);
      return [];
    }
    this.#owe(notification);
    return [];
  }

  /** The application says so. */
  outdated(now: number): void {
    if (this.#owed.length === 0) this.staleSince = now;
    this.#owed = this.#owed.filter((one) => one.notification !== null);
    this.#owe(null);
  }

  #owe(notification: Notification | null): void {
    this.#mark += 1;
    this.tries = Math.min(this.tries, this.#pauses.triesMax - 1); // worth another try, but no sooner than the pauses allow
    this.#owed.push({ mark: this.#mark, notification });
  }

  begin(now: number, epoch: number): Attempt {
    return { mark: this.#mark, began: now, epoch };
  }

  /** Will this fetch, if it succeeds, meet all that is owed? */
  suffices(attempt: Attempt): boolean {
    return this.#owed.every((one) => one.mark <= attempt.mark);
  }

  /** A fetch answered. Whether it is the entry's value from now on: then it goes to the store. */
  adopt(now: number, attempt: Attempt, value: V, version: bigint | null, dice: number): boolean {
    const behind = version !== null && this.version !== null && attempt.epoch === this.epoch && version < this.version;
    const takes = !(behind && this.present);
    if (takes) {
      this.value = value;
      this.version = version;
      this.epoch = attempt.epoch;
      this.present = true;
      this.kept = false;
      this.began = attempt.began;
    }
    if (!takes || this.#lags(attempt, version)) {
      this.#putOff(now, dice);
      this.lagging = true;
      this.trouble = `the answer's version is ${version}, and a later one is known`;
      return takes;
    }
    const left: Owed[] = [];
    for (const one of this.#owed) {
      const { notification } = one;
      if (one.mark > attempt.mark && !(notification !== null && reaches(version, attempt.epoch, notification))) left.push(one);
      else if (notification !== null) this.#met.push(notification);
    }
    this.#owed = left;
    this.freshSince = now;
    this.tries = 0;
    this.retryAt = NEVER;
    this.lagging = false;
    this.trouble = "";
    return true;
  }

  /** The store holds the value. Answers what is to be acknowledged now. */
  stored(): Notification[] {
    this.kept = true;
    const met = this.#met;
    this.#met = [];
    return met;
  }

  /** The fetch failed, or its answer could not be stored. The value stays as it is; another try follows after a pause. */
  failed(now: number, trouble: string, dice: number): void {
    this.#putOff(now, dice);
    this.lagging = false;
    this.trouble = trouble;
  }

  #putOff(now: number, dice: number): void {
    this.retryAt = now + fetchPauseS(this.#pauses, this.tries, dice);
    this.tries += 1;
  }

  /** A notification that came before the fetch began names a later version. Versions of two epochs do not compare. */
  #lags(attempt: Attempt, version: bigint | null): boolean {
    if (version === null) return false;
    return this.#owed.some(({ mark, notification: told }) => {
      if (mark > attempt.mark || told === null || told.version === null) return false;
      return told.epoch === attempt.epoch && version < told.version;
    });
  }

  /** What to answer whoever asks for the value. Out of sync it is good for `outOfSyncS` after it was last known to be current. */
  choose(now: number, toldUntil: number | null, outOfSyncS: number): Choice {
    if (!this.present) return "fetch";
    if (this.#owed.length === 0) {
      if (now - this.#knownAt(toldUntil) <= outOfSyncS) return "serve";
      if (toldUntil !== null && toldUntil >= now) return "serve";
    }
    if (now < this.retryAt) return this.lagging ? "serve" : "fail";
    return "fetch";
  }

  standing(now: number, toldUntil: number | null): Standing {
    if (!this.present) return { state: "unknown", forS: now - this.#opened };
    if (this.#owed.length > 0) {
      const mayBe = this.#owed.every((one) => one.notification !== null && one.notification.version === null);
      return { state: mayBe ? "unknown" : "stale", forS: now - this.staleSince };
    }
    if (toldUntil !== null && toldUntil >= now) return { state: "fresh", forS: now - this.freshSince };
    return { state: "unknown", forS: now - Math.max(this.#opened, this.#knownAt(toldUntil)) };
  }

  /** When the value was last known to be current: when its fetch began, or when the service last said so. */
  #knownAt(toldUntil: number | null): number {
    return toldUntil === null ? this.began : Math.max(this.began, toldUntil);
  }
}

/** Whoever acknowledges `later` need not acknowledge `earlier`: a later one of its kind, or of an epoch that ended. */
function replaces(later: Notification, earlier: Notification): boolean {
  return (later.version === null) === (earlier.version === null) || later.epoch > earlier.epoch;
}

/** A value of this version is the one notified, or a later one. */
function reaches(version: bigint | null, epoch: number, notification: Notification): boolean {
  return version !== null && notification.version !== null && epoch === notification.epoch && version >= notification.version;
}
