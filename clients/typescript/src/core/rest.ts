/**
 * The parts of the core that a first connection does without: what the server refuses, and more registrations than one message holds. Pure.
 *
 * A core is given them from the start (index.ts), or as soon as they are loaded. Until then whoever has a message that needs them
 * (`needsRest`) keeps it back, or drops it, as a channel may; and a statement of many registrations is as good as lost.
 */

import { bucketSummaries, syncRequested } from "./buckets.ts";
import { failed, refused, reported } from "./refusals.ts";

export const rest = {
  _bucketSummaries: bucketSummaries,
  _failed: failed,
  _refused: refused,
  _reported: reported,
  _syncRequested: syncRequested,
};
export type Rest = typeof rest;
