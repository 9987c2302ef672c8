/**
 * When the registrations are compared and stated anew: the Registration Sync Protocol, the client's side (Thialfi 4.1.3). Pure.
 *
 * The client decides: it states its registrations when the summaries differ and nothing is in flight, with a pause that doubles from one
 * attempt to the next until they agree. A server's request is a hint, obeyed at most once a minute. Up to FULL_SYNC_MAX registrations are
 * stated in one message; above that by buckets (buckets.ts).
 */

import type { Desired } from "./desired.ts";
import type { Sync, SyncObject } from "./messages.ts";
import type { Name } from "./model.ts";
import type { Rest } from "./rest.ts";
import { FULL_SYNC_MAX } from "./settings.ts";


/** The one attempt that may be in flight. `notBeforeS` is when it is repeated, or when the next may begin. */
export class Syncing {
  _inFlight = false;
  _askedOp = 0; // of the bucket summaries that wait for an answer
  _attempts = 0;
  _notBeforeS = -Infinity;
  _lastS = -Infinity;

  _agreed(): void {
    this._restart();
    this._attempts = 0;
  }

  /** The channel or the session is gone, and with it the answer. The count of attempts stays: it slows a loop down. */
  _restart(): void {
    this._inFlight = false;
    this._askedOp = 0;
    this._notBeforeS = -Infinity;
  }

  _sent(nowS: number, op: number, pauseS: number, asks: boolean): void {
    this._inFlight = true;
    this._askedOp = asks ? op : 0;
    this._attempts += 1;
    this._lastS = nowS;
    this._notBeforeS = nowS + pauseS;
  }
}

/** All registrations if they are few, else the summaries of their buckets; null: they are too many for a core without its rest. */
export function statement(desired: Desired, op: number, objectsMax: number, rest: Rest | null): Sync | null {
  if (desired.size <= Math.min(FULL_SYNC_MAX, objectsMax)) return { op, objects: [...desired.keys()].map(stating(desired)) };
  return rest && { op, summaries: rest._bucketSummaries(desired.keys()) };
}

export const stating = (desired: Desired) => (object: Name): SyncObject => ({ object, ...desired._stated(object) });
