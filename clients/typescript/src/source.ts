/**
 * Where a client's notifications come from: a session of its own (session.ts), or one that the tabs of a page share (tabs/). Types only.
 */

import type { Action } from "./core/actions.ts";
import type { RoskvaError } from "./core/errors.ts";
import type { Name } from "./core/model.ts";
import type { Notification } from "./registrations.ts";

/** What a source tells its client, one at a time. `changed`: `connected`, `inSync` or `confirmed` may have changed. */
export type Told = Exclude<Action, { kind: "send" | "writeState" | "closeChannel" | "credentialAccepted" }> | { readonly kind: "changed" };

export interface Source {
  readonly device: string;
  readonly connected: boolean;
  readonly inSync: boolean;
  /** The service has exactly the registrations wished for. */
  readonly _confirmed: boolean;
  readonly url: string;
  readonly channel: string;
  /** Why the last connection failed. */
  readonly _unreachable: string;
  readonly stopped: RoskvaError | null;
  /** The code by which the service refused the user's credential. Empty: it did not. */
  readonly _credentialProblem: string;
  start(): Promise<void>;
  /** The objects wished for. */
  readonly _wished: Pick<ReadonlyMap<Name, unknown>, "has" | "keys">;
  register(name: Name, version: bigint | null, epoch: number, intervalMs?: number): void;
  unregister(name: Name, forget: boolean): void;
  acknowledge(notification: Notification): void;
  _giveBack(notification: Notification): void;
  _toldUntil(name: Name): number | null;
  /** The user's credential from now on. */
  _useCredential(text: string): Promise<void>;
  /** Sign out: `stopped` is told when the service has deleted the client. */
  forget(): void;
  /** Nothing is left of the client here. */
  _deleteState(): Promise<void>;
  close(): Promise<void>;
}
