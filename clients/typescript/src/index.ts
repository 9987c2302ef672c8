/** Roskva for pages and services: keeps what they hold fresh. */

export { Channel } from "./channels/channel.ts";
export { Client, type ClientEvents, type ClientOptions } from "./client.ts";
export * from "./core/errors.ts";
export { ServiceUnreachable, StateInUse } from "./errors.ts";
export type { Handler, Notification, RegisterOptions, Registrations, UnregisterOptions } from "./registrations.ts";
export { MemoryState } from "./stores/memory.ts";
export type { StateStore } from "./stores/store.ts";
export { WebStorageState } from "./stores/webstorage.ts";
