/**
 * One tab's part, be it the leading one: what its application wishes for and was shown. Pure.
 *
 * It is to the leader what a client is to the service: it keeps its registrations, restates them to each new leader, and filters what comes
 * again, by the same marks (core/handover.ts). So a notification that the tab is still at work on when the leader changes is not shown
 * twice, and its acknowledgement reaches whoever leads when it is due.
 *
 * When it has heard nothing for as long as the last word holds, it asks. A leader answers even if nothing has changed. Asked by a tab that
 * woke, too, it has ANSWER_S; then it is asked again, and the shell told, again and again: to have it replaced is the shell's.
 */

import { RoskvaError } from "../core/errors.ts";
import { ackOf, Handover } from "../core/handover.ts";
import type { Ack } from "../core/messages.ts";
import { keyOf, type Name } from "../core/model.ts";
import type { Notification } from "../registrations.ts";
import type { Told } from "../source.ts";
import type { Delivery, FromLeader, FromTab, Standing, Wish } from "./messages.ts";

const AGAIN_MIN_S = 1; // as the service's pauses before it delivers again
const AGAIN_MAX_S = 60;
export const ANSWER_S = 10; // a leader that lives answers sooner
const LATE_S = 2; // whoever looks so late has slept, and the answer may wait beside him

/** `unanswered`: the leader is frozen. */
export type TabAction = { readonly kind: "say"; readonly message: FromTab } | { readonly kind: "unanswered" } | Told;

/** Given back by the application. */
interface Again {
  readonly notification: Notification;
  dueS: number;
  tries: number;
}

export class Tab {
  /** From when on it wants to be told everything. Set it before it hears of a leader. */
  bornS = 0;
  /** The last word of the present leader. */
  standing: Standing | null = null;
  stopped: RoskvaError | null = null;
  readonly wishes = new Map<Name, Wish>();
  #term = ""; // of the present leader
  #unconfirmed = new Set<Name>(); // by the present leader
  readonly #handover = new Handover();
  readonly #again = new Map<string, Again>();
  #againDueS = Infinity; // the first of them is not due before
  #standingUntilS = -Infinity;
  #lookS = Infinity; // when to ask (again)
  #asked = false; // and not answered yet
  #forgetting = false;
  #followedS = -Infinity;

  /** What the leader said of the connection, if that still holds. */
  now(nowS: number): Standing | null {
    return nowS < this.#standingUntilS ? this.standing : null;
  }

  /** The service has exactly what is wished for, and each wish of this tab is confirmed to it. */
  confirmed(nowS: number): boolean {
    return (this.now(nowS)?.confirmed ?? false) && this.#unconfirmed.size === 0;
  }

  toldUntil(nowS: number, name: Name): number | null {
    if (!this.wishes.has(name) || this.#unconfirmed.has(name)) return null;
    return this.now(nowS)?.follows ? nowS : this.#followedS;
  }

  register(name: Name, version: bigint | null, epoch: number, statedMs?: number): TabAction[] {
    const known = this.wishes.get(name);
    const intervalMs = statedMs ?? known?.intervalMs;
    this.#handover._registered(name, version === null ? null : { version, epoch }, known !== undefined);
    const held = version === null && known ? known : { version, epoch };
    const wish = { name, version: held.version, epoch: held.epoch, intervalMs, told: false };
    this.wishes.set(name, wish);
    if (known && known.intervalMs === intervalMs) return this.#unconfirmed.has(name) ? [] : [{ kind: "statusChanged", name, registered: true }];
    this.#unconfirmed.add(name);
    return [this.#say({ kind: "register", wish }), { kind: "changed" }];
  }

  /** It takes effect here at once: this tab is told nothing more of it. */
  unregister(name: Name, forget: boolean): TabAction[] {
    this.#handover._unregistered(name, forget);
    const said = this.#drop(name) ? [this.#say({ kind: "unregister", name, forget })] : [];
    return [...said, { kind: "statusChanged", name, registered: false }, { kind: "changed" }];
  }

  acknowledge(notification: Notification): TabAction[] {
    const key = againKey(notification);
    const again = this.#again.get(key);
    if (again && covers(notification, again.notification)) this.#again.delete(key);
    const acks = this.#handover._acknowledged(notification);
    return this.wishes.has(notification.name) ? acks.map((ack) => this.#ack(notification.name, ack)) : [];
  }

  /** The application failed on it: it is shown again after a pause. The leader goes on waiting. */
  giveBack(nowS: number, notification: Notification): TabAction[] {
    this.#handover._giveBack(notification);
    if (!this.wishes.has(notification.name)) return [];
    const key = againKey(notification);
    const known = this.#again.get(key);
    if (known && !covers(notification, known.notification)) return []; // a later one is shown again
    const tries = (known?.tries ?? 0) + 1;
    const dueS = nowS + Math.min(AGAIN_MAX_S, AGAIN_MIN_S * 2 ** (tries - 1));
    this.#again.set(key, { notification, tries, dueS });
    this.#againDueS = Math.min(this.#againDueS, dueS);
    return [];
  }

  /** When `tick` is wanted. Earlier does no harm. */
  nextDeadline(): number | null {
    const dueS = Math.min(this.#againDueS, this.#lookS);
    return Number.isFinite(dueS) ? dueS : null;
  }

  tick(nowS: number): TabAction[] {
    return [...(nowS >= this.#againDueS ? this.#showAgain(nowS) : []), ...(nowS >= this.#lookS ? this.#look(nowS) : [])];
  }

  #showAgain(nowS: number): TabAction[] {
    const actions: TabAction[] = [];
    this.#againDueS = Infinity;
    for (const again of this.#again.values()) {
      const { notification } = again;
      if (again.dueS > nowS) {
        this.#againDueS = Math.min(this.#againDueS, again.dueS);
        continue;
      }
      again.dueS = Infinity; // kept for its count, until the application has dealt with it
      // An unknown of an earlier reign is not in this one's marks: its number means another one here, or none.
      const ours = notification.version !== null || notification.session === this.#handover._session;
      for (const action of ours ? this.#deliver(notification) : [{ kind: "notify", notification } as const]) actions.push(action);
    }
    return actions;
  }

  #look(nowS: number): TabAction[] {
    const unanswered = this.#asked && nowS < this.#lookS + LATE_S;
    this.#asked = false;
    const asks = this.ask(nowS, "hello");
    return [{ kind: "changed" }, ...asks, ...(unanswered ? [{ kind: "unanswered" } as const] : [])];
  }

  /** Does the leader live? Said by a tab that begins, or that woke. */
  ask(nowS: number, kind: "hello" | "wake"): TabAction[] {
    if (!this.#asked) this.#lookS = nowS + ANSWER_S;
    this.#asked = true;
    return [this.#say({ kind })];
  }

  #answered(nextLookS: number): void {
    this.#asked = false;
    this.#lookS = nextLookS;
  }

  forget(): TabAction[] {
    this.#forgetting = true; // the leader may be about to go: then the next is asked
    return [this.#say({ kind: "forget" })];
  }

  /** A leader speaks. */
  heard(nowS: number, message: FromLeader): TabAction[] {
    switch (message.kind) {
      case "lead":
        this.#answered(nowS + ANSWER_S); // it will say how things stand
        return this.#led(message, nowS - this.bornS > message.ageS);
      case "soon":
        this.#answered(nowS + ANSWER_S);
        return [];
      case "notify":
        return this.wishes.has(message.delivery.name) ? this.#deliver({ ...message.delivery, session: this.#handover._session }) : [];
      case "status":
        return this.#status(message.name, message.registered);
      case "failed":
        return this.#failed(message);
      case "reported":
      case "credentialWanted":
        return [message];
      case "standing":
        // Else marks of epochs that the service no longer knows would hide what it tells from now on.
        if (message.standing.epoch !== null) this.#handover._countsIn(message.standing.epoch);
        this.standing = message.standing;
        this.#standingUntilS = nowS + message.standing.validS;
        this.#answered(this.#standingUntilS);
        if (message.standing.follows) this.#followedS = nowS;
        return [{ kind: "changed" }];
      case "stopped":
        if (this.stopped) return [];
        this.stopped = new RoskvaError(message.code, message.message);
        return [{ kind: "stopped", error: this.stopped }];
    }
  }

  /** What it has of this tab is not known: it is told all. What it delivers is counted anew. */
  #led({ term, after }: FromLeader & { kind: "lead" }, older: boolean): TabAction[] {
    const follows = this.#term !== "" && after === this.#term; // else there was a reign that this tab took no part in
    this.#term = term;
    this.standing = null;
    this.#standingUntilS = -Infinity;
    this.#handover._newSession();
    const wishes = [...this.wishes.values()].map((wish) => ({ ...wish, told: follows && !this.#unconfirmed.has(wish.name) }));
    this.#unconfirmed = new Set(this.wishes.keys());
    const asksToForget = this.#forgetting ? [this.#say({ kind: "forget" })] : [];
    return [this.#say({ kind: "restate", older, wishes }), ...asksToForget, { kind: "changed" }];
  }

  #deliver(notification: Notification): TabAction[] {
    const verdict = this.#handover._delivered(notification);
    if (verdict === "show") return [{ kind: "notify", notification }];
    return verdict === "again" ? [this.#ack(notification.name, ackOf(notification))] : [];
  }

  #status(name: Name, registered: boolean): TabAction[] {
    if (!this.wishes.has(name) || this.#unconfirmed.has(name) !== registered) return [];
    if (registered) this.#unconfirmed.delete(name);
    else this.#unconfirmed.add(name);
    return [{ kind: "statusChanged", name, registered }, { kind: "changed" }];
  }

  #failed(message: FromLeader & { kind: "failed" }): TabAction[] {
    const { name, transient, code, message: text } = message;
    if (!this.wishes.has(name)) return [];
    if (!transient) {
      this.#handover._unregistered(name, false);
      this.#drop(name);
    }
    return [{ kind: "registrationFailed", name, transient, code, message: text }, { kind: "changed" }];
  }

  #drop(name: Name): boolean {
    for (const version of [null, 0n]) this.#again.delete(againKey({ name, version }));
    this.#unconfirmed.delete(name);
    return this.wishes.delete(name);
  }

  #ack(name: Name, { seqno, version, epoch = 0 }: Ack): TabAction {
    const delivery: Delivery = { name, version: version === undefined ? null : BigInt(version), epoch, seqno: BigInt(seqno) };
    return this.#say({ kind: "ack", delivery });
  }

  #say(message: FromTab): TabAction {
    return { kind: "say", message };
  }
}

/** Of two of the same key: whoever has dealt with the first need not be shown the other. */
function covers(one: Notification, other: Notification): boolean {
  if (one.version !== null) return keyOf(one) >= keyOf(other);
  return one.session > other.session || (one.session === other.session && one.seqno >= other.seqno);
}

/** At most one unknown and one version of each object. */
const againKey = ({ name, version }: Pick<Notification, "name" | "version">): string => `${version === null ? "?" : "="}${name}`;
