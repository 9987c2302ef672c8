/**
 * For users' own tests: a service in the test's process, with a clock moved by hand and losses on demand.
 */

export { HandClock, Stuck } from "./clock.ts";
export { Service, type ServiceOptions, type TestClientOptions } from "./service.ts";
