/**
 * What a client does not need for its first connection: where to go when that fails, when to ask whether it still stands, what the service
 * refuses, what caches, loops and signing out need. A session loads this as soon as it is in sync for the first time, a connection fails, or
 * a message needs it: so it is there before the page's own server may be gone. If it cannot be loaded, it is tried again when it is needed
 * next; README.md (What is loaded when) says what a client does until then.
 */

export { Connector } from "./connector.ts";
export { forget } from "./core/forgetting.ts";
export { rest } from "./core/rest.ts";
export { Following } from "./following.ts";
export { loop } from "./loop.ts";
export { onWake } from "./wake.ts";
export { wake } from "./waking.ts";
