/**
 * What the client makes of a server that refuses: a message, its token, a registration (Thialfi 4.1.2, 4.1.3). Pure.
 *
 * A part of the core (core.ts) that few connections need: it is given with the rest (rest.ts).
 */

import type { ClientCore } from "./core.ts";
import { ClientStopped, RoskvaError } from "./errors.ts";
import { forgotten } from "./forgetting.ts";
import { pauseS } from "./limits.ts";
import type { ErrorReport, StartAnew, Status } from "./messages.ts";
import type { Name } from "./model.ts";
import { SUPERSEDED_AGAIN_S } from "./settings.ts";

const OVERLOADED = "overloaded";
const GOING_AWAY = "going-away";
const NOT_AUTHORIZED = "not-authorized";
const SUPERSEDED = "session-superseded";
/** No patience helps: the application names something that does not exist. Once it has worked, we keep trying. */
const HOPELESS = ["unknown-application", "invalid-application", "invalid-device"];

/**
 * A message was refused as a whole. What it asked for is repeated by its own timer, not before the server says so.
 *
 * Up to twice as late, so that clients which were refused together do not return together. If the Registrar has not spoken over this
 * connection, what was refused may be the message that says where the client is now, and no other follows: it is said again.
 */
export function reported(core: ClientCore, nowS: number, { code, message, transient, retry_after_s }: ErrorReport): void {
  const { config, _forgetting: forgetting, _handshake: handshake, _operations: operations, _outbox: outbox, _syncing: syncing } = core;
  if (!handshake._grantedBefore && HOPELESS.includes(code)) return core._end(new RoskvaError(code, message));
  if (code === GOING_AWAY) {
    core.spreadS = retry_after_s;
    return core._do({ kind: "closeChannel" });
  }
  if (retry_after_s > 0) {
    const leastS = Math.min(Math.max(retry_after_s, config.retry_min_s), config.retry_max_s);
    const untilS = (core._refusedUntilS = Math.max(core._refusedUntilS, nowS + leastS * (1 + core._random())));
    if (code === OVERLOADED) {
      // It has no room, and knows when it will: then, however long the own pauses have become, and not later.
      for (const operation of operations.values()) {
        if (operation._sent && operation._dueS > untilS) operations._scheduleAt(operation, untilS);
      }
      forgetting?._againAt(untilS);
      if (syncing._inFlight) syncing._notBeforeS = Math.min(syncing._notBeforeS, untilS);
      if (handshake._nonce !== "") handshake._dueS = Math.min(handshake._dueS, untilS);
    }
    if (core._heardAtS === -Infinity || !handshake._welcomed) outbox._heartbeatDueS = Math.min(outbox._heartbeatDueS, untilS);
  }
  core._do({ kind: "reported", code, message, transient });
}

/**
 * The token cannot be used: the next `init` names it as the prior one, or this is a new client.
 *
 * `token` is the message's. While an init waits, only what names its nonce counts: the rest is of an older token or nonce, or a repeat.
 */
export function refused(core: ClientCore, nowS: number, token: string, { code, keep, nonce }: StartAnew): void {
  const { _handshake: handshake } = core;
  const dice = core._random();
  const ofInit = handshake._nonce !== "" && nonce === handshake._nonce;
  const ofToken = handshake._token !== "" && token === handshake._token;
  if (!ofInit && !ofToken) return;
  // A session that never took effect was overtaken by a repeat of our own init, not by another client with our state.
  if (code === SUPERSEDED && handshake._welcomed) {
    if (nowS - handshake._supersededAtS < SUPERSEDED_AGAIN_S) {
      return core._end(new ClientStopped("Another client runs with the same state: it superseded this one twice within a minute."));
    }
    handshake._supersededAtS = nowS;
  }
  handshake._prior = keep ? handshake._token || handshake._prior : "";
  handshake._token = handshake._nonce = "";
  handshake._dueS = handshake._attempts <= 1 ? -Infinity : nowS + pauseS(core.config, handshake._attempts, dice);
  core._serverSummary = core._restatingUntilS = null;
  if (keep) return;
  if (core._forgetting) return forgotten(core);
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
    // It leaves the unanswered ones, and is sent again after its pause.
    const operation = operations.get(name) ?? operations._enter(name, wished);
    if (operation._sent) operations._unanswered -= 1;
    operation._sent = false;
    operations._schedule(operation, nowS, core.config, core._random());
  } else {
    operations._settle(name);
    // Else the summaries would differ for ever.
    if (desired._drop(name)) core._handover._unregistered(name, false);
    desired._unconfirmed.delete(name);
    if (stood && code === NOT_AUTHORIZED) core._changed(name, false); // its user may not have it any more
  }
  core._do({ kind: "registrationFailed", name, transient, code, message });
}
