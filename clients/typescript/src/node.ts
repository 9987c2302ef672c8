/** What only Node has: a state in a file, and the publisher for backends. */

export { type Change, Publisher, type PublisherOptions } from "./publisher.ts";
export { FileState } from "./stores/file.ts";
