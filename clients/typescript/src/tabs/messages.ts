/**
 * What the tabs of a page say to each other over a BroadcastChannel, which keeps each sender's order. Pure.
 *
 * One tab leads: it has the connection. `term` names its reign; what is said in another one is ignored.
 */

import type { Name } from "../core/model.ts";

/** Of all this. Whoever changes what it means raises it: after a deployment old pages and new ones must not take part in one reign. */
const FORMAT = 1;
/** The name of all that the tabs of one client share: its channel, its locks, its kept state. */
export const scopeOf = (application: string, device: string): string => `roskva:tabs-${FORMAT}:${application}:${device}`;

/** A tab's registration, with the version that its application stated. */
export interface Wish {
  readonly name: Name;
  readonly version: bigint | null;
  readonly epoch: number;
  /** Of tabs that wish for the same object, the last one to state another counts; those that state none leave it. */
  readonly intervalMs?: number | undefined;
  /** The leader before this one had confirmed it to this tab: whatever came until then was delivered. */
  readonly told: boolean;
}

/** A notification on its way to a tab, and its acknowledgement. `seqno` counts the leader's deliveries. */
export interface Delivery {
  readonly name: Name;
  readonly version: bigint | null;
  readonly epoch: number;
  readonly seqno: bigint;
}

export interface Standing {
  readonly device: string;
  readonly connected: boolean;
  readonly inSync: boolean;
  readonly confirmed: boolean;
  /** Changes of every confirmed registration are told as they happen. */
  readonly follows: boolean;
  readonly url: string;
  readonly channel: string;
  readonly unreachable: string;
  readonly credentialProblem: string;
  /** The service's, by its last word. Null: it has not said. */
  readonly epoch: number | null;
  /** Without another word for so long the tab knows nothing of all this any more. */
  readonly validS: number;
}

export type FromTab =
  | { readonly kind: "hello" } // is anybody there?
  // These are all. `older`: than this reign, or perhaps so.
  | { readonly kind: "restate"; readonly older: boolean; readonly wishes: readonly Wish[] }
  | { readonly kind: "register"; readonly wish: Wish }
  | { readonly kind: "unregister"; readonly name: Name; readonly forget: boolean }
  | { readonly kind: "ack"; readonly delivery: Delivery }
  | { readonly kind: "credential"; readonly text: string } // to all tabs: whoever leads next has it, too
  | { readonly kind: "wake" } // this tab, and so perhaps the machine, has slept
  | { readonly kind: "forget" };

export type FromLeader =
  // A reign begins, or somebody asked. `after`: the one before it, empty if none is known. For `ageS` it has heard all that was told.
  | { readonly kind: "lead"; readonly term: string; readonly after: string; readonly ageS: number }
  | { readonly kind: "soon" } // somebody asked, and this tab is about to lead
  | { readonly kind: "notify"; readonly delivery: Delivery }
  | { readonly kind: "status"; readonly name: Name; readonly registered: boolean }
  | { readonly kind: "failed"; readonly name: Name; readonly transient: boolean; readonly code: string; readonly message: string }
  | { readonly kind: "reported"; readonly code: string; readonly message: string; readonly transient: boolean }
  | { readonly kind: "credentialWanted"; readonly code: string; readonly message: string }
  | { readonly kind: "standing"; readonly standing: Standing }
  | { readonly kind: "stopped"; readonly code: string; readonly message: string };
