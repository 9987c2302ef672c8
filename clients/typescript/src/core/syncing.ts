/**
 * When the registrations are compared and stated anew: the Registration Sync Protocol, the client's side (Thialfi 4.1.3). Pure.
 *
 * The client decides: it states its registrations when the summaries differ and nothing is in flight, with a pause that doubles from one
 * attempt to the next until they agree. A server's request is a hint, obeyed at most once a minute. Up to FULL_SYNC_MAX registrations are
 * stated in one message; above that by buckets (buckets.ts).
 */

/** The one attempt that may be in flight. `dueS` is when it is repeated, or when the next may begin. */
export class Syncing {
  _inFlight = false;
  _askedOp = 0; // of the bucket summaries that wait for an answer
  _attempts = 0;
  _dueS = -Infinity;
  _lastS = -Infinity;

  _agreed(): void {
    this._restart();
    this._attempts = 0;
  }

  /** The channel or the session is gone, and with it the answer. The count of attempts stays: it slows a loop down. */
  _restart(): void {
    this._inFlight = false;
    this._askedOp = 0;
    this._dueS = -Infinity;
  }
}
