/**
 * What a client does not need for its first connection: where to go when that fails, and when to ask whether it still stands. A session
 * loads this as soon as it is in sync for the first time, or a connection fails: so it is there before the page's own server may be gone.
 */

export { Connector } from "./connector.ts";
export { buckets } from "./core/buckets.ts";
export { onWake } from "./wake.ts";
