/**
 * Errors of what is around the core, beside those of core/errors.ts.
 *
 *     RoskvaError
 *     +-- ServiceUnreachable   nothing answers at the service's address
 *     +-- StateInUse           another running client holds this state
 *     +-- NotAuthorized        what a LiveCache was asked for the client's user may not have
 *     +-- FetchFailed          what a LiveCache holds is outdated, or nothing, and the application's fetch failed
 */

import { RoskvaError } from "./core/errors.ts";

export { InvalidSetting } from "./core/errors.ts";

export class ServiceUnreachable extends RoskvaError {
  constructor(what: string) {
    super("service-unreachable", `${what} Is it running, and is this its address?`);
  }
}

export class StateInUse extends RoskvaError {
  constructor(what: string) {
    super("state-in-use", `${what} is in use by another running client. Give each a state of its own, or stop the other one first.`);
  }
}

export class NotAuthorized extends RoskvaError {
  constructor() {
    super("not-authorized", "This user may not register for this object. Register for what this user may see, or let the application allow it.");
  }
}

/** `cause` is what the application's fetch threw, if it was called just now; `retryInS` is when the cache will call it again. */
export class FetchFailed extends RoskvaError {
  readonly reason: string;
  readonly retryInS: number;

  constructor(id: string, reason: string, retryInS: number, cause?: unknown) {
    super(
      "fetch-failed",
      `The object ${JSON.stringify(id)} could not be fetched: ${reason.slice(0, 200)}. ` +
        "Ask again later, or use what the cache still holds (`peek`).",
    );
    this.reason = reason;
    this.retryInS = retryInS;
    if (cause !== undefined) this.cause = cause;
  }
}
