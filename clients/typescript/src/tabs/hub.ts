/**
 * The leading tab's part: the registrations of all tabs as one client's, its notifications to each tab that registered. Pure.
 *
 * The session wishes for an object while any tab does. A notification goes to every tab that registered its object, and is acknowledged to
 * the service when each of them has acknowledged it or is gone. A later one takes the place of one that waits: to acknowledge the later
 * version is to acknowledge the earlier. A tab that fails on a notification gets it again by itself (tab.ts); here it is still at work.
 *
 * A tab that registers what another has registered before it missed what was told since it was loaded. It is told the highest version that
 * came or was stated in this reign, or unknown if that came, though nobody else may wish for the object any more: the service was told that
 * this client has it. What was told before this reign nobody knows: a tab older than the reign is told unknown, unless the leader before
 * this one had confirmed its registration and so told it all. That one acknowledged only what this tab had acknowledged, and the service
 * delivers the rest again. A leader that never heard of the tab acknowledged without it; so one that was earlier still does not count.
 *
 * The session remembers nothing of an object that no tab wishes for: which tab was shown what, the tabs know.
 */

import { keyOf, type Name } from "../core/model.ts";
import type { Notification } from "../registrations.ts";
import type { Delivery, FromLeader, FromTab, Wish } from "./messages.ts";

/** What the shell must do, in order: post to a tab, or call the session. */
export type HubAction =
  | { readonly kind: "post"; readonly to: string; readonly message: FromLeader }
  | { readonly kind: "register"; readonly wish: Wish }
  | { readonly kind: "unregister"; readonly name: Name; readonly forget: true }
  | { readonly kind: "acknowledge"; readonly notification: Notification }
  | { readonly kind: "forget" };

export const LEFT_MAX = 10_000; // objects that no tab wishes for any more, but of which something is known

interface Pending {
  readonly notification: Notification;
  readonly delivery: Delivery;
  readonly waiting: Set<string>; // tabs that have not acknowledged it
}

type Version = Pick<Delivery, "version" | "epoch">;
const NOTHING_YET: Version = { version: null, epoch: -1 };

/** What this reign knows of an object. */
interface Known {
  highest: Version; // that came, or was stated by a tab
  unknown: boolean; // one came
}

interface Shared extends Known {
  readonly tabs: Set<string>;
  readonly pending: Map<boolean, Pending>; // at most one unknown (true) and one version (false)
  confirmed: boolean;
  intervalMs: number | undefined; // that the session was told
}

/** Nobody wishes for it any more. */
interface Left extends Known {
  readonly last: string; // the tab that did until then, and so was told all of it; empty if it forgot that
}

export class Hub {
  readonly #objects = new Map<Name, Shared>();
  readonly #left = new Map<Name, Left>(); // the oldest first
  #leftAreAll = true;
  readonly #tabs = new Map<string, boolean>(); // whether each is older than this reign
  #seqno = 0n;
  #actions: HubAction[] = [];

  /** A tab says something: first its registrations. */
  said(tab: string, message: FromTab): HubAction[] {
    if (message.kind === "restate") {
      this.#restated(tab, message);
    } else if (!this.#tabs.has(tab)) return []; // gone, or not yet heard of: it will restate
    else if (message.kind === "register") this.#add(tab, message.wish);
    else if (message.kind === "unregister") this.#remove(tab, message.name, message.forget);
    else if (message.kind === "ack") this.#acknowledged(tab, message.delivery);
    else if (message.kind === "forget") this.#actions.push({ kind: "forget" });
    return this.#taken();
  }

  /** A tab is closed, or crashed. */
  gone(tab: string): HubAction[] {
    this.#tabs.delete(tab);
    for (const name of [...this.#objects.keys()]) this.#remove(tab, name, true);
    return this.#taken();
  }

  notified(notification: Notification): HubAction[] {
    const { name, version, epoch } = notification;
    const object = this.#objects.get(name);
    if (object) {
      const delivery = { name, version, epoch, seqno: ++this.#seqno };
      object.pending.set(version === null, { notification, delivery, waiting: new Set(object.tabs) });
      if (version === null) object.unknown = true;
      else if (keyOf(delivery) > keyOf(object.highest)) object.highest = delivery;
      for (const tab of object.tabs) this.#post(tab, { kind: "notify", delivery });
    }
    return this.#taken();
  }

  /** What the session tells of one object: to the tabs that registered it. */
  status(message: FromLeader & { kind: "status" | "failed" }): HubAction[] {
    const object = this.#objects.get(message.name);
    if (object) {
      for (const tab of object.tabs) this.#post(tab, message);
      if (message.kind === "status") object.confirmed = message.registered;
      else if (!message.transient) this.#leave(message.name, object, "");
    }
    return this.#taken();
  }

  #taken(): HubAction[] {
    const actions = this.#actions;
    this.#actions = [];
    return actions;
  }

  #post(to: string, message: FromLeader): void {
    this.#actions.push({ kind: "post", to, message });
  }

  /** One that was here already has heard of another reign meanwhile: it counts deliveries anew, so all that waits is told again. */
  #restated(tab: string, { older, wishes }: FromTab & { kind: "restate" }): void {
    if (this.#tabs.has(tab)) {
      const wished = new Set(wishes.map(({ name }) => name));
      for (const [name, { tabs }] of [...this.#objects]) {
        if (wished.has(name)) tabs.delete(tab);
        else this.#remove(tab, name, true);
      }
    }
    this.#tabs.set(tab, older);
    for (const wish of wishes) this.#add(tab, wish);
  }

  #add(tab: string, wish: Wish): void {
    const held = wish.version === null ? NOTHING_YET : wish;
    const object = this.#objects.get(wish.name) ?? this.#entered(tab, wish);
    const isNew = !object.tabs.has(tab);
    object.tabs.add(tab);
    if (isNew) this.#catchUp(tab, wish, held, object);
    const { intervalMs = object.intervalMs } = wish;
    if (intervalMs !== object.intervalMs) {
      object.intervalMs = intervalMs;
      object.confirmed = false; // the session says when it is
      this.#actions.push({ kind: "register", wish: { ...wish, version: null } }); // what this tab holds the others may not have
    }
    if (keyOf(held) > keyOf(object.highest)) object.highest = held;
    for (const { delivery, waiting } of isNew ? object.pending.values() : []) {
      waiting.add(tab);
      this.#post(tab, { kind: "notify", delivery });
    }
    if (object.confirmed) this.#post(tab, { kind: "status", name: wish.name, registered: true });
  }

  /** The first wish for it, perhaps after others. */
  #entered(tab: string, wish: Wish): Shared {
    const left = this.#left.get(wish.name);
    this.#left.delete(wish.name);
    const { highest, unknown } = left ?? { highest: NOTHING_YET, unknown: !this.#leftAreAll };
    const object: Shared = { tabs: new Set(), pending: new Map(), confirmed: false, highest, unknown, intervalMs: wish.intervalMs };
    if (left?.last === tab) object.tabs.add(tab); // nothing came since
    this.#objects.set(wish.name, object);
    this.#actions.push({ kind: "register", wish });
    return object;
  }

  /** The service may not hear of it, should somebody wish for it again at once: what it was told stands. */
  #leave(name: Name, { highest, unknown }: Known, last: string): void {
    this.#objects.delete(name); // what is pending nobody has dealt with: the service delivers it again, or voids it with the registration
    this.#left.set(name, { highest, unknown, last });
    if (this.#left.size > LEFT_MAX) {
      this.#left.delete(this.#left.keys().next().value as Name);
      this.#leftAreAll = false;
    }
    this.#actions.push({ kind: "unregister", name, forget: true });
  }

  /** What it must be told though nobody else waits for it. */
  #catchUp(tab: string, { name, told }: Wish, held: Version, { highest, unknown }: Known): void {
    const older = !told && (this.#tabs.get(tab) ?? true);
    if (!older && !unknown && keyOf(highest) <= keyOf(held)) return;
    const version = older || unknown ? null : highest.version;
    this.#post(tab, { kind: "notify", delivery: { name, version, epoch: Math.max(0, highest.epoch), seqno: ++this.#seqno } });
  }

  #remove(tab: string, name: Name, forget: boolean): void {
    const object = this.#objects.get(name);
    if (!object?.tabs.delete(tab)) return;
    if (object.tabs.size === 0) {
      this.#leave(name, object, forget ? "" : tab);
    } else {
      for (const [unknown, pending] of object.pending) this.#settled(object, unknown, pending, tab);
    }
  }

  #acknowledged(tab: string, delivery: Delivery): void {
    const unknown = delivery.version === null;
    const object = this.#objects.get(delivery.name);
    const pending = object?.pending.get(unknown);
    if (!object || !pending) return;
    const covers = unknown ? delivery.seqno >= pending.delivery.seqno : keyOf(delivery) >= keyOf(pending.delivery);
    if (covers) this.#settled(object, unknown, pending, tab);
  }

  #settled(object: Shared, unknown: boolean, { notification, waiting }: Pending, tab: string): void {
    if (!waiting.delete(tab) || waiting.size > 0) return;
    object.pending.delete(unknown);
    this.#actions.push({ kind: "acknowledge", notification });
  }
}
