/**
 * The pure core of the client: give it what happens, carry out what it answers (core.ts lists a caller's duties).
 */

import { buckets } from "./buckets.ts";
import { ClientCore as Core, type CoreOptions } from "./core.ts";

export type { Action, Notification } from "./actions.ts";
export type { CoreOptions };
export { Credential } from "./credential.ts";
export * from "./errors.ts";
export { connectPauseS } from "./limits.ts";
export { type ClientMessage, type Config, decodeServer, encode, type ServerMessage } from "./messages.ts";
export { type Name, nameFromBytes, nameFromText } from "./model.ts";

/** One run of one client, with all parts of the core but the credential, which is the caller's to give. */
export class ClientCore extends Core {
  constructor(application: string, device: string, options: CoreOptions) {
    super(application, device, { buckets, ...options });
  }
}
