/**
 * The pure core of the client: give it what happens, carry out what it answers (core.ts lists a caller's duties).
 */

import type { Action } from "./actions.ts";
import { ClientCore as Core, type CoreOptions as Parts } from "./core.ts";
import { useCredential } from "./credential.ts";
import { forget } from "./forgetting.ts";
import { rest } from "./rest.ts";
import { priorToken } from "./state.ts";

export type { Action, Notification } from "./actions.ts";
export { Credential } from "./credential.ts";
export * from "./errors.ts";
export { connectPauseS } from "./connecting.ts";
export { type ClientMessage, type Config, decodeServer, encode, type ServerMessage } from "./messages.ts";
export { type Name, nameFromBytes, nameFromText } from "./model.ts";

export interface CoreOptions extends Omit<Parts, "prior"> {
  /** What the last run's `writeState` gave. */
  readonly state?: string | null;
  readonly library?: string;
}

/** One run of one client, with all parts of the core but the credential, which is the caller's to give. */
export class ClientCore extends Core {
  /** Why the state was of no use, if it was not. */
  readonly stateIgnored: string;

  constructor(application: string, device: string, { state = null, library, ...options }: CoreOptions) {
    const { prior, ignored } = priorToken(state, application, device);
    super(application, device, { ...options, prior });
    this.stateIgnored = ignored;
    this._rest = rest;
    if (library) this.info = { library };
  }

  /** Sign out: `stopped` says that the server has deleted this client. */
  forget(nowS: number): Action[] {
    return forget(this, nowS);
  }

  /** The user's credential from now on; it is shown at once. Empty: there is none any more, which is not said to anybody. */
  useCredential(nowS: number, text: string): Action[] {
    return useCredential(this, nowS, text);
  }
}
