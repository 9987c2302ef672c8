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

import type { Notification } from "./actions.ts";
import { type Held, stated } from "./desired.ts";
import type { Ack } from "./messages.ts";
import { type Key, keyOf, type Name, NOTHING_YET } from "./model.ts";
import { DELIVERIES_MAX, EPOCH_MAX, RETIRED_MAX } from "./settings.ts";


/** Hand it over to the application, acknowledge it again, or neither. */
export type Verdict = "show" | "again" | "";

interface Marks {
  _handed: Key;
  _acknowledged: Key;
  _highest: Key;
  readonly _deliveries: Map<bigint, Notification>; // open ones: seqno -> the highest version that came under it
  _unknownHanded: bigint;
  _unknownAcknowledged: bigint;
  _covered: Key; // the highest shown when the last unknown was handed over: whoever fetches after that has it
}

const highest = (...keys: Key[]): Key => keys.reduce((top, key) => (key > top ? key : top));

export class Handover {
  _session = 0;
  _epoch = EPOCH_MAX; // the service's, by its last word; before that every one is possible
  readonly #marks = new Map<Name, Marks>();
  readonly #retired = new Map<Name, Marks>(); // of objects not registered, the oldest first

  _delivered(notification: Notification): Verdict {
    const marks = this.#marksOf(notification.name);
    const { seqno, epoch, version } = notification;
    this._epoch = Math.max(this._epoch, epoch);
    const key = keyOf(notification);
    if (version === null) {
      if (seqno <= marks._unknownHanded) return seqno <= marks._unknownAcknowledged ? "again" : "";
      marks._unknownHanded = seqno;
      marks._covered = marks._highest;
      marks._highest = highest(marks._highest, key);
      return "show";
    }
    if (key <= marks._acknowledged) return "again";
    const { _deliveries: deliveries } = marks;
    const before = deliveries.get(seqno);
    if (!before || key > keyOf(before)) deliveries.set(seqno, notification);
    if (deliveries.size > DELIVERIES_MAX) deliveries.delete([...deliveries.keys()].reduce((least, one) => (one < least ? one : least)));
    if (key <= marks._handed || key < marks._highest) return ""; // an older version came late
    marks._handed = marks._highest = key;
    return "show";
  }

  /** The application is done with it. Names every delivery that this covers, exactly as it came. */
  _acknowledged(notification: Notification): Ack[] {
    const { name, session, seqno, version } = notification;
    const marks = this.#known(name);
    const current = session === this._session;
    const key = keyOf(notification);
    if (!marks) return [];
    if (version === null) {
      if (!current || seqno > marks._unknownHanded) return [];
      marks._unknownAcknowledged = highest(marks._unknownAcknowledged, seqno);
      marks._acknowledged = highest(marks._acknowledged, key, marks._covered);
      marks._handed = highest(marks._handed, marks._acknowledged);
      return [ackOf(notification)];
    }
    if (key > marks._highest) return []; // never shown: nobody may acknowledge what was not delivered
    marks._acknowledged = highest(marks._acknowledged, key);
    marks._handed = highest(marks._handed, key);
    const covered = [...marks._deliveries.values()].filter((came) => keyOf(came) <= key);
    for (const came of covered) marks._deliveries.delete(came.seqno);
    // None: a higher version came under the same seqno meanwhile, or it is acknowledged twice.
    if (!covered.length && current) covered.push(notification);
    return covered.map(ackOf);
  }

  /** The application did not take it: show it again when it is delivered again, be it after another registration. */
  _giveBack(notification: Notification): void {
    const { name, session, seqno, version } = notification;
    const marks = this.#known(name);
    if (!marks) return;
    if (version !== null) {
      if (marks._handed === keyOf(notification)) marks._handed = marks._acknowledged;
    } else if (session === this._session && marks._unknownHanded === seqno) {
      marks._unknownHanded = marks._unknownAcknowledged;
    }
  }

  /**
   * The application wishes for it (`again`: it did so before), and states what it holds.
   *
   * What is held counts as acknowledged. A new registration that states less than was shown wants to be told again.
   */
  _registered(name: Name, held: Held | null, again: boolean): void {
    const retired = this.#retired.get(name);
    if (retired) {
      this.#retired.delete(name);
      this.#marks.set(name, retired);
    }
    if (!held || held.epoch > this._epoch) return;
    const marks = this.#marksOf(name);
    const key = keyOf(held);
    if (!again && key < marks._acknowledged) {
      marks._handed = marks._acknowledged = key;
    } else {
      marks._acknowledged = highest(marks._acknowledged, key);
      marks._handed = highest(marks._handed, key);
      marks._highest = highest(marks._highest, key);
    }
  }

  _unregistered(name: Name, forget: boolean): void {
    const marks = this.#marks.get(name);
    this.#marks.delete(name);
    if (forget) {
      this.#retired.delete(name);
    } else if (marks) {
      this.#retired.set(name, marks);
      if (this.#retired.size > RETIRED_MAX) this.#retired.delete(this.#retired.keys().next().value as Name);
    }
  }

  /** The service's epoch, by its own word at a handshake. */
  _countsIn(epoch: number): void {
    this._epoch = epoch;
    for (const marks of this.#all()) {
      if (highest(marks._highest, marks._acknowledged) >= keyOf({ epoch: epoch + 1, version: null })) {
        marks._handed = marks._acknowledged = marks._highest = marks._covered = NOTHING_YET;
        marks._deliveries.clear();
      }
    }
  }

  /**
   * The server may know us by a new client id, whose seqnos begin again and may repeat: an old mark must not hide a new unknown. Versions
   * are the object's, whoever asks: their marks stay.
   */
  _newSession(): void {
    this._session += 1;
    for (const marks of this.#all()) {
      marks._deliveries.clear();
      marks._unknownHanded = marks._unknownAcknowledged = -1n;
    }
  }

  #known(name: Name): Marks | undefined {
    return this.#marks.get(name) ?? this.#retired.get(name);
  }

  #marksOf(name: Name): Marks {
    let marks = this.#marks.get(name);
    if (!marks) {
      marks = {
        _handed: NOTHING_YET,
        _acknowledged: NOTHING_YET,
        _highest: NOTHING_YET,
        _deliveries: new Map(),
        _unknownHanded: -1n,
        _unknownAcknowledged: -1n,
        _covered: NOTHING_YET,
      };
      this.#marks.set(name, marks);
    }
    return marks;
  }

  #all(): Marks[] {
    return [...this.#marks.values(), ...this.#retired.values()];
  }
}

export function ackOf(notification: Notification): Ack {
  return { object: notification.name, seqno: String(notification.seqno), ...stated(notification) };
}
