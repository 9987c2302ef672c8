/**
 * What a client offers to whoever registers for objects: `Client` has it, a `LiveCache` asks for it (Thialfi, Figure 2). Types only.
 */

import type { Notification } from "./core/actions.ts";

export type { Notification };

/**
 * Called with the notifications of one object, one at a time. When it returned, or its promise is fulfilled, the notification is
 * acknowledged; if it failed, the notification is given back, and comes again.
 */
export type Handler = (notification: Notification) => void | Promise<void>;

export interface RegisterOptions {
  /** What the application holds already and keeps over a restart, as a notification told it: nothing is sent for it or older ones. */
  readonly version?: bigint | number;
  readonly epoch?: number;
  /**
   * Be told at most once in so long, of the latest version then: a whole number up to 3,600,000. 0 ends it; without it what an earlier call
   * or start stated stays.
   */
  readonly notifyIntervalMs?: number;
  /** The handler is called at once, whatever it is still doing, and its return acknowledges nothing: `acknowledge` does. */
  readonly manual?: boolean;
  /** Called if the service refuses the registration for good, or ends it: the handler is called no more. Must not throw. */
  readonly refused?: (name: string, code: string, message: string) => void;
  /** When it is aborted, the object is unregistered. */
  readonly signal?: AbortSignal;
}

export interface UnregisterOptions {
  /** Should it be registered again in this run, everything is told anew. */
  readonly forget?: boolean;
}

export interface Registrations {
  /** Wish to be told of an object's versions. Fulfilled when the wish is recorded here, not when the service has it. */
  register(id: string, handler?: Handler | null, options?: RegisterOptions): Promise<void>;
  unregister(id: string, options?: UnregisterOptions): Promise<void>;
  /** The handler is called no more. The registration stays: what comes is kept for the handler with which it is registered next. */
  release(id: string): Promise<void>;
  /** The application has dealt with it. Loops, and handlers that are not manual, do this by themselves. */
  acknowledge(notification: Notification): void;
  /** Up to when (by `now`) the service has told of every change of this object that it knew. Null: the registration is not confirmed. */
  toldUntil(id: string): number | null;
  /** A monotonic clock, in seconds. */
  now(): number;
  /** For caches: called when the user signed out, in whatever tab, to leave nothing behind. What this answers takes it back. */
  whenForgotten?(forget: () => Promise<void>): () => void;
}
