/**
 * Which notifications reach the application, and what its acknowledgements name (Thialfi 3.3, 4.1.4, 4.1.6). Pure.
 *
 * Theory of operation. The server repeats a notification until it is acknowledged, and channels repeat and reorder. The application is to
 * see each (epoch, version) of an object once per run, never a lower one after a higher one, and each unknown once per session and seqno.
 * Per object we keep three marks that only grow:
 *
 *     acknowledged <= handed over <= highest ever shown
 *
 *     delivered version                           what happens
 *     up to acknowledged                          acknowledged again, silently: our acknowledgement was lost
 *     above it, up to handed over                 nothing: the application is still at work on it, and will acknowledge
 *     above handed over, not below the highest    handed over
 *     else (given back once, and outdated since)  nothing
 *
 * Handed over falls back to acknowledged when the application gives a notification back: its next redelivery is shown again. Unknown has
 * marks of its own, over seqnos: an acknowledged version says nothing about an unknown, which may stand for a later version that was lost.
 * An acknowledged unknown says that the object was fetched, so whatever was shown before it is acknowledged too: the service may have lost
 * all but an older version, which would else be delivered for ever. An unknown of a new epoch lifts the version marks into that epoch.
 *
 * Epochs only rise, unless the service has lost everything and counts from below again: it says its epoch at every handshake, and marks of
 * epochs above it would hide all that it tells from then on. They go, and a version may be seen twice.
 *
 * The marks outlive an unregistration: an application that registers again in the same run is not told again what it has been told. One
 * that forgot the object when it unregistered says so (`forget`), and is told everything anew. Marks of objects that are no longer
 * registered are bounded: beyond the bound the oldest go, and a version may then be seen twice, which is allowed.
 */

import { type Notification } from "./actions.ts";
import { stated } from "./desired.ts";
import { type Ack } from "./messages.ts";
import { EPOCH_MAX, type Name } from "./model.ts";

/** (epoch, version): how versions compare. */
type Key = readonly [epoch: number, version: bigint];
const NOTHING_YET: Key = [-1, -1n];
export const RETIRED_MAX = 100_000; // marks of unregistered objects
const DELIVERIES_MAX = 4; // registrations of one object with an open delivery; more than two need lost messages

export type Verdict = "hand over" | "acknowledge again" | "nothing";

interface Marks {
  handed: Key;
  acknowledged: Key;
  highest: Key;
  readonly deliveries: Map<bigint, Key>; // open ones: seqno -> the highest version that came under it
  unknownHanded: bigint;
  unknownAcknowledged: bigint;
  covered: Key; // the highest shown when the last unknown was handed over: whoever fetches after that has it
}

const compare = (one: Key, other: Key): number =>
  one[0] !== other[0] ? one[0] - other[0] : one[1] < other[1] ? -1 : one[1] > other[1] ? 1 : 0;
const highest = (first: Key, ...others: Key[]): Key => others.reduce((top, key) => (compare(key, top) > 0 ? key : top), first);
const noMarks = (): Marks => ({
  handed: NOTHING_YET,
  acknowledged: NOTHING_YET,
  highest: NOTHING_YET,
  deliveries: new Map(),
  unknownHanded: -1n,
  unknownAcknowledged: -1n,
  covered: NOTHING_YET,
});

export class Handover {
  #session = 0;
  #epoch = EPOCH_MAX; // the service's, by its last word; before that every one is possible
  readonly #marks = new Map<Name, Marks>();
  readonly #retired = new Map<Name, Marks>(); // of objects not registered, the oldest first

  get session(): number {
    return this.#session;
  }

  delivered(notification: Notification): Verdict {
    const marks = this.#marksOf(notification.name);
    this.#epoch = Math.max(this.#epoch, notification.epoch);
    if (notification.version === null) return unknownDelivered(marks, notification);
    const key: Key = [notification.epoch, notification.version];
    if (compare(key, marks.acknowledged) <= 0) return "acknowledge again";
    marks.deliveries.set(notification.seqno, highest(key, marks.deliveries.get(notification.seqno) ?? key));
    if (marks.deliveries.size > DELIVERIES_MAX) {
      marks.deliveries.delete([...marks.deliveries.keys()].reduce((least, seqno) => (seqno < least ? seqno : least)));
    }
    if (compare(key, marks.handed) <= 0 || compare(key, marks.highest) < 0) return "nothing"; // an older version came late
    marks.handed = marks.highest = key;
    return "hand over";
  }

  /** The application is done with it. Names every delivery that this covers, exactly as it came. */
  acknowledged(notification: Notification): Ack[] {
    const marks = this.#marks.get(notification.name) ?? this.#retired.get(notification.name);
    if (marks === undefined) return [];
    const current = notification.session === this.#session;
    if (notification.version === null) return current ? unknownAcknowledged(marks, notification) : [];
    const key: Key = [notification.epoch, notification.version];
    if (compare(key, marks.highest) > 0) return []; // never shown: nobody may acknowledge what was not delivered
    marks.acknowledged = highest(marks.acknowledged, key);
    marks.handed = highest(marks.handed, key);
    const covered = [...marks.deliveries].filter(([, came]) => compare(came, key) <= 0);
    for (const [seqno] of covered) marks.deliveries.delete(seqno);
    // None: a higher version came under the same seqno meanwhile, or it is acknowledged twice.
    if (covered.length === 0 && current) return [ackOf(notification)];
    return covered.map(([seqno, [epoch, version]]) => ackOf({ ...notification, seqno, epoch, version }));
  }

  /** The application did not take it: show it again when it is delivered again, be it after another registration. */
  giveBack(notification: Notification): void {
    const marks = this.#marks.get(notification.name) ?? this.#retired.get(notification.name);
    if (marks === undefined) return;
    if (notification.version === null) {
      if (notification.session === this.#session && marks.unknownHanded === notification.seqno) {
        marks.unknownHanded = marks.unknownAcknowledged;
      }
    } else if (compare(marks.handed, [notification.epoch, notification.version]) === 0) {
      marks.handed = marks.acknowledged;
    }
  }

  /**
   * The application wishes for it (`again`: it did so before), and states what it holds.
   *
   * What is held counts as acknowledged. A new registration that states less than was shown wants to be told again.
   */
  registered(name: Name, held: Key | null, again: boolean): void {
    const retired = this.#retired.get(name);
    if (retired !== undefined) {
      this.#retired.delete(name);
      this.#marks.set(name, retired);
    }
    if (held === null || held[0] > this.#epoch) return;
    const marks = this.#marksOf(name);
    if (!again && compare(held, marks.acknowledged) < 0) {
      marks.handed = marks.acknowledged = held;
    } else {
      marks.acknowledged = highest(marks.acknowledged, held);
      marks.handed = highest(marks.handed, held);
      marks.highest = highest(marks.highest, held);
    }
  }

  unregistered(name: Name, forget: boolean): void {
    const marks = this.#marks.get(name);
    this.#marks.delete(name);
    if (forget) {
      this.#retired.delete(name);
    } else if (marks !== undefined) {
      this.#retired.set(name, marks);
      if (this.#retired.size > RETIRED_MAX) this.#retired.delete(this.#retired.keys().next().value as Name);
    }
  }

  /** The service's epoch, by its own word at a handshake. */
  countsIn(epoch: number): void {
    this.#epoch = epoch;
    for (const marks of this.#all()) {
      if (highest(marks.highest, marks.acknowledged)[0] > epoch) {
        marks.handed = marks.acknowledged = marks.highest = marks.covered = NOTHING_YET;
        marks.deliveries.clear();
      }
    }
  }

  /**
   * The server may know us by a new client id, whose seqnos begin again and may repeat: an old mark must not hide a new unknown. Versions
   * are the object's, whoever asks: their marks stay.
   */
  newSession(): void {
    this.#session += 1;
    for (const marks of this.#all()) {
      marks.deliveries.clear();
      marks.unknownHanded = marks.unknownAcknowledged = -1n;
    }
  }

  #marksOf(name: Name): Marks {
    let marks = this.#marks.get(name);
    if (marks === undefined) this.#marks.set(name, (marks = noMarks()));
    return marks;
  }

  *#all(): Iterable<Marks> {
    yield* this.#marks.values();
    yield* this.#retired.values();
  }
}

function unknownDelivered(marks: Marks, { seqno, epoch }: Notification): Verdict {
  if (seqno <= marks.unknownAcknowledged) return "acknowledge again";
  if (seqno <= marks.unknownHanded) return "nothing";
  marks.unknownHanded = seqno;
  marks.covered = marks.highest;
  marks.highest = highest(marks.highest, [epoch, -1n]);
  return "hand over";
}

function unknownAcknowledged(marks: Marks, notification: Notification): Ack[] {
  if (notification.seqno > marks.unknownHanded) return [];
  if (notification.seqno > marks.unknownAcknowledged) marks.unknownAcknowledged = notification.seqno;
  marks.acknowledged = highest(marks.acknowledged, [notification.epoch, -1n], marks.covered);
  marks.handed = highest(marks.handed, marks.acknowledged);
  return [ackOf(notification)];
}

export function ackOf({ name, seqno, version, epoch }: Notification): Ack {
  if (version !== null) return { object: name, seqno: String(seqno), ...stated({ version, epoch }) };
  return { object: name, seqno: String(seqno), ...(epoch === 0 ? {} : { epoch }) };
}
