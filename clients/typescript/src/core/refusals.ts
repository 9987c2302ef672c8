/**
 * What the client makes of a server that refuses: a message, its token, a registration (Thialfi 4.1.2, 4.1.3). Pure.
 *
 * A part of the core (core.ts). What only makes it better is in meanings.ts.
 */

import type { ClientCore } from "./core.ts";
import { pauseS } from "./limits.ts";
import type { ErrorReport, StartAnew, Status } from "./messages.ts";
import type { Name } from "./model.ts";

const NOT_AUTHORIZED = "not-authorized";
const RIVAL_ATTEMPTS = 6; // two clients with one state, and nobody to end it: at least they take their time
const SUPERSEDED = "session-superseded";
/**
 * A message was refused as a whole. What it asked for is repeated by its own timer, not before the server says so.
 *
 * Up to twice as late, so that clients which were refused together do not return together. If the Registrar has not spoken over this
 * connection, what was refused may be the message that says where the client is now, and no other follows: it is said again.
 */
export function reported(core: ClientCore, nowS: number, error: ErrorReport): void {
  const { config, _handshake: handshake, _outbox: outbox, _rest: rest } = core;
  const { retry_after_s, ...told } = error;
  if (rest?._ended(core, error)) return;
  if (retry_after_s > 0) {
    const leastS = Math.min(Math.max(retry_after_s, config.retry_min_s), config.retry_max_s);
    const untilS = (core._refusedUntilS = Math.max(core._refusedUntilS, nowS + leastS * (1 + core._random())));
    rest?._sooner(core, error, untilS);
    if (core._heardAtS === -Infinity || !handshake._welcomed) outbox._dueS = Math.min(outbox._dueS, untilS);
  }
  core._do({ kind: "reported", ...told });
}

/**
 * The token cannot be used: the next `init` names it as the prior one, or this is a new client.
 *
 * `token` is the message's. While an init waits, only what names its nonce counts: the rest is of an older token or nonce, or a repeat.
 */
export function refused(core: ClientCore, nowS: number, token: string, { code, keep, nonce }: StartAnew): void {
  const { _handshake: handshake } = core;
  const dice = core._random();
  const ofInit = handshake._nonce && nonce === handshake._nonce;
  const ofToken = handshake._token && token === handshake._token;
  if (!ofInit && !ofToken) return;
  // A session that never took effect was overtaken by a repeat of our own init, not by another client with our state.
  if (code === SUPERSEDED && handshake._welcomed) {
    if (core._rest?._superseded(core, nowS)) return;
    if (!core._rest) handshake._attempts += RIVAL_ATTEMPTS;
  }
  handshake._prior = keep ? handshake._token || handshake._prior : "";
  handshake._token = handshake._nonce = "";
  handshake._dueS = handshake._attempts <= 1 ? -Infinity : nowS + pauseS(core.config, handshake._attempts, dice);
  core._serverSummary = null;
  core._restatingUntilS = 0;
  if (keep) return;
  if (core._forgetting) return core._forgetting._done();
  core._operations.clear(); // a new client has no registrations: the sync states them all
  core.desired._unconfirmed.clear();
  for (const name of core.desired.keys()) core.desired._unconfirmed.add(name);
  core._writeState();
  core._do({ kind: "reissueRegistrations" });
}

/** A registration, or the end of one, is not to be had: not now, or never. */
export function failed(core: ClientCore, nowS: number, name: Name, { transient, code, message }: Status): void {
  const { desired, _operations: operations } = core;
  const wished = desired.has(name);
  const stood = wished && !operations.has(name) && !desired._unconfirmed.has(name);
  if (!operations.has(name) && !wished) return; // a late answer to an earlier wish
  if (transient) {
    core._rest?._postponed(core, nowS, name, wished); // else it is repeated as if nothing had been answered
  } else {
    operations._settle(name);
    // Else the summaries would differ for ever.
    if (desired._drop(name)) core._handover._unregistered(name, false);
    desired._unconfirmed.delete(name);
    if (stood && code === NOT_AUTHORIZED) core._changed(name, false); // its user may not have it any more
  }
  core._do({ kind: "registrationFailed", name, transient, code, message });
}
