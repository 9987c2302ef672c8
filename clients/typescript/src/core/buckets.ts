/**
 * Registrations by buckets, for clients with more than FULL_SYNC_MAX (Thialfi 4.1.3, Registration Sync Protocol). Pure.
 *
 * A bucket holds the names whose hash begins with that byte. The summaries of the buckets go first, and then, when the server has named
 * those that differ, what they hold. A statement is authoritative for the buckets that it names, so no bucket is split over two messages.
 *
 * Few clients have so many: it is given with the rest (rest.ts).
 */

import type { ClientCore } from "./core.ts";
import type { Desired } from "./desired.ts";
import type { BucketSummary, Sync, SyncObject, SyncRequest } from "./messages.ts";
import type { Name } from "./model.ts";
import { BUCKETS, DIGEST_BITS, HINT_INTERVAL_S } from "./settings.ts";
import { hashOf, SetDigest } from "./summaries.ts";

export const bucketOf = (name: Name): number => bucketOfHash(hashOf(name));
const bucketOfHash = (hash: bigint): number => Number(hash >> BigInt(DIGEST_BITS - 8));

/** The summaries of the buckets that are not empty, in order. */
export function bucketSummaries(names: Iterable<Name>): BucketSummary[] {
  const digests = Array.from({ length: BUCKETS }, () => new SetDigest());
  for (const name of names) {
    const hash = hashOf(name); // once: it is what takes time here
    digests[bucketOfHash(hash)]?._change(hash);
  }
  return digests.map((digest, bucket) => ({ bucket, ...digest._summary() })).filter(({ count }) => count);
}

/**
 * What the named buckets hold, whole buckets together up to `objectsMax` objects a message.
 *
 * A single bucket above the limit goes alone: with 100,000 registrations a bucket holds about 390 objects, limits are 1,000.
 */
export function bucketStatements(desired: Desired, buckets: readonly number[], firstOp: number, objectsMax: number): Sync[] {
  const members = new Map<number, Name[]>(); // an empty one is an answer too: the server has something there that we do not wish for
  for (const bucket of [...buckets].sort((one, other) => one - other)) members.set(bucket, []);
  for (const name of desired.keys()) members.get(bucketOf(name))?.push(name);
  const statements: { op: number; objects: SyncObject[]; buckets: number[] }[] = [];
  for (const [bucket, names] of members) {
    let last = statements.at(-1);
    if (!last || last.objects.length + names.length > objectsMax) {
      statements.push((last = { op: firstOp + statements.length, objects: [], buckets: [] }));
    }
    last.objects.push(...names.map((name) => desired._stated(name)));
    last.buckets.push(bucket);
  }
  return statements;
}

/** The server hints at a difference, which a client heeds at most once a minute; or it has named the buckets that differ. */
export function syncRequested(core: ClientCore, nowS: number, { op, buckets }: SyncRequest): void {
  const { desired, _outbox: outbox, _syncing: syncing } = core;
  if (!buckets) {
    // The core states them at once, if the summaries differ and nothing is in flight.
    if (!syncing._inFlight && nowS - syncing._lastS >= HINT_INTERVAL_S) syncing._dueS = -Infinity;
  } else if (op && op === syncing._askedOp) {
    syncing._askedOp = 0;
    const statements = bucketStatements(desired, buckets, outbox._nextOp, outbox._objectsMax());
    outbox._nextOp += statements.length;
    for (const sync of statements) core._do(outbox._message(nowS, { sync }));
  }
}
