/**
 * When the registrations are compared and stated anew: the Registration Sync Protocol, the client's side (Thialfi 4.1.3). Pure.
 *
 * The client decides: it states its registrations when the summaries differ and nothing is in flight, with a pause that doubles from one
 * attempt to the next until they agree. A server's request is a hint, obeyed at most once a minute. Up to FULL_SYNC_MAX registrations are
 * stated in one message; above that by buckets (buckets.ts).
 */

import type { Buckets } from "./buckets.ts";
import type { Desired } from "./desired.ts";
import type { Sync, SyncObject } from "./messages.ts";
import type { Name } from "./model.ts";
import { FULL_SYNC_MAX, HINT_INTERVAL_S } from "./settings.ts";


/** The one attempt that may be in flight. `notBeforeS` is when it is repeated, or when the next may begin. */
export class Syncing {
  inFlight = false;
  askedOp = 0; // of the bucket summaries that wait for an answer
  attempts = 0;
  notBeforeS = -Infinity;
  #lastS = -Infinity;

  agreed(): void {
    this.interrupted();
    this.attempts = 0;
  }

  /** The channel or the session is gone, and with it the answer. The count of attempts stays: it slows a loop down. */
  interrupted(): void {
    this.inFlight = false;
    this.askedOp = 0;
    this.notBeforeS = -Infinity;
  }

  sent(nowS: number, op: number, pauseS: number, asks: boolean): void {
    this.inFlight = true;
    this.askedOp = asks ? op : 0;
    this.attempts += 1;
    this.#lastS = nowS;
    this.notBeforeS = nowS + pauseS;
  }

  /** The server had no room and said until when. */
  againAt(untilS: number): void {
    if (this.inFlight) this.notBeforeS = Math.min(this.notBeforeS, untilS);
  }

  /** The server asks for a statement, and we may give it at once. */
  hinted(nowS: number): boolean {
    return !this.inFlight && nowS - this.#lastS >= HINT_INTERVAL_S;
  }
}

/** All registrations if they are few, else the summaries of their buckets; null: they are too many for who knows nothing of buckets. */
export function statement(desired: Desired, op: number, objectsMax: number, buckets: Buckets | null): Sync | null {
  if (desired.size <= Math.min(FULL_SYNC_MAX, objectsMax)) return { op, objects: [...desired.keys()].map(stating(desired)) };
  return buckets && { op, summaries: buckets.summaries(desired.keys()) };
}

export const stating = (desired: Desired) => (object: Name): SyncObject => ({ object, ...desired.stated(object) });
