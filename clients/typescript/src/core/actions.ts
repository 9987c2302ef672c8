/**
 * What the client's core asks of its shell, in the order in which it must happen (Thialfi, Figure 2: NotificationListener).
 * Pure: data only.
 */

import type { RoskvaError } from "./errors.ts";
import type { ClientMessage } from "./messages.ts";
import type { Name } from "./model.ts";

/** An object changed. `version` is the latest one known; null means unknown: fetch the object whatever you hold. */
export interface Notification {
  readonly name: Name;
  readonly version: bigint | null;
  readonly epoch: number; // raised when the application is reset; versions compare as (epoch, version)
  readonly seqno: bigint; // the server's; names the delivery in its acknowledgement
  readonly session: number; // counts the sessions of this run: a seqno of one may mean something else in the next
}

/** Send this over the channel. It may get lost: the core repeats what needs an answer. */
export interface Send {
  readonly kind: "send";
  readonly message: ClientMessage;
}

/** Hand this to the application; then call `acknowledge`, or `giveBack` if the application did not take it. */
export interface Notify {
  readonly kind: "notify";
  readonly notification: Notification;
}

export interface StatusChanged {
  readonly kind: "statusChanged";
  readonly name: Name;
  readonly registered: boolean;
}

/** Transient: the core tries again by itself. Else the object is no longer wished for: register it again, or give it up. */
export interface RegistrationFailed {
  readonly kind: "registrationFailed";
  readonly name: Name;
  readonly transient: boolean;
  readonly code: string;
  readonly message: string;
}

/** The application may state its registrations now. Those that it stated in this run the core restates by itself. */
export interface ReissueRegistrations {
  readonly kind: "reissueRegistrations";
}

/** Keep this text and hand it to the core of the next start. Opaque. */
export interface WriteState {
  readonly kind: "writeState";
  readonly state: string;
}

/**
 * The server did nothing for want of a credential, or refused the one it got (`code` and `message` are its own); or, with the code
 * `credential-refresh`, the one that is in use soon ends. Whoever has another gives it to `useCredential`.
 */
export interface CredentialWanted {
  readonly kind: "credentialWanted";
  readonly code: string;
  readonly message: string;
}

export interface CredentialAccepted {
  readonly kind: "credentialAccepted";
  readonly goodS: number; // from now; 0: for as long as the session
}

/** The server refused something as a whole. For the log. */
export interface Reported {
  readonly kind: "reported";
  readonly code: string;
  readonly message: string;
  readonly transient: boolean;
}

/** The connection is of no use any more: close it, and connect again unless the client was stopped. */
export interface CloseChannel {
  readonly kind: "closeChannel";
}

/** The client ended by itself, for this reason. Nothing will come any more. */
export interface Stopped {
  readonly kind: "stopped";
  readonly error: RoskvaError;
}

export type Action =
  | Send
  | Notify
  | StatusChanged
  | RegistrationFailed
  | ReissueRegistrations
  | WriteState
  | CredentialWanted
  | CredentialAccepted
  | Reported
  | CloseChannel
  | Stopped;
