/** Everything for pages, in one file that needs no bundler: every gateway serves it as /roskva.js. */

export * from "./index.ts";
export * from "./livecache.ts";
