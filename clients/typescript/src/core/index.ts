/**
 * The pure core of the client: give it what happens, carry out what it answers (core.ts lists a caller's duties).
 */

export type { Action, Notification } from "./actions.ts";
export { buckets } from "./buckets.ts";
export { Credential } from "./credential.ts";
export { ClientCore, type CoreOptions } from "./core.ts";
export * from "./errors.ts";
export { connectPauseS } from "./limits.ts";
export { type ClientMessage, type Config, decodeServer, encode, type ServerMessage } from "./messages.ts";
export { type Name, nameFromBytes, nameFromText } from "./model.ts";
