/**
 * The parts of the core that only make things better: many registrations are compared by buckets, a server's hints are taken, and what some
 * refusals mean beyond "not now" is known. Pure.
 *
 * A core is given them from the start (index.ts), or as soon as they are loaded. No message waits for them, and without them every wish
 * takes effect all the same: all registrations are stated in one message or, if they do not fit, made one by one (outbox.ts), and what was
 * refused is asked for again after the core's own pauses (refusals.ts).
 */

import { bucketSummaries, syncRequested } from "./buckets.ts";
import { ended, postponed, sooner, superseded } from "./meanings.ts";

export const rest = {
  _bucketSummaries: bucketSummaries,
  _ended: ended,
  _postponed: postponed,
  _sooner: sooner,
  _superseded: superseded,
  _syncRequested: syncRequested,
};
export type Rest = typeof rest;
