/**
 * All that every client loads. What is loaded later, if at all, takes from here what it needs of it: so a bundler that cuts a program into
 * files leaves this in one piece, which is smaller, and loads sooner, than several.
 */

export { Link, NotConnected } from "./channels/link.ts";
export { connectWebSocket } from "./channels/websocket.ts";
export { Client } from "./client.ts";
export { systemClock } from "./clock.ts";
export { ClientStopped, FORGOTTEN, InvalidSetting } from "./core/errors.ts";
export { pauseS } from "./core/limits.ts";
export { kindOf } from "./first.ts";
export { Session } from "./session.ts";
export { unguessable } from "./stores/store.ts";
