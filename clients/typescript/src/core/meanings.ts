/**
 * What some refusals mean beyond "not now" (docs/errors.md): never, elsewhere, or then and not later. Pure.
 *
 * A part of the core (core.ts) that few connections need: it is given with the rest (rest.ts).
 */

import type { ClientCore } from "./core.ts";
import { ClientStopped, RoskvaError } from "./errors.ts";
import type { ErrorReport } from "./messages.ts";
import type { Name } from "./model.ts";
import { SUPERSEDED_AGAIN_S } from "./settings.ts";

const OVERLOADED = "overloaded";
const GOING_AWAY = "going-away";
/** No patience helps: the application names something that does not exist. Once it has worked, we keep trying. */
const HOPELESS = ["unknown-application", "invalid-application", "invalid-device"];

/** Whether this error ends the client, or the connection. */
export function ended(core: ClientCore, { code, message, retry_after_s }: ErrorReport): boolean {
  if (!core._handshake._grantedBefore && HOPELESS.includes(code)) {
    core._end(new RoskvaError(code, message));
    return true;
  }
  if (code !== GOING_AWAY) return false;
  core.spreadS = retry_after_s;
  core._do({ kind: "closeChannel" });
  return true;
}

/** Who has no room knows when there will be some: ask then, however long the own pauses have become, and not later. */
export function sooner(core: ClientCore, { code }: ErrorReport, untilS: number): void {
  if (code !== OVERLOADED) return;
  const { _forgetting: forgetting, _handshake: handshake, _operations: operations, _syncing: syncing } = core;
  for (const operation of operations.values()) {
    if (operation._sent && operation._dueS > untilS) operations._scheduleAt(operation, untilS);
  }
  for (const asked of [forgetting, syncing._inFlight && syncing, handshake._nonce && handshake]) {
    if (asked) asked._dueS = Math.min(asked._dueS, untilS);
  }
}

/** Another client runs with our state. Whether that ends this one: else the two would supersede each other without end. */
export function superseded(core: ClientCore, nowS: number): boolean {
  const { _handshake: handshake } = core;
  const again = nowS - handshake._supersededAtS < SUPERSEDED_AGAIN_S;
  if (again) core._end(new ClientStopped("Another client runs with the same state: it superseded this one twice within a minute."));
  else handshake._supersededAtS = nowS;
  return again;
}

/** It leaves the unanswered ones, and is sent again after its pause. */
export function postponed(core: ClientCore, nowS: number, name: Name, wished: boolean): void {
  const { config, _operations: operations, _random: random } = core;
  const operation = operations.get(name) ?? operations._enter(name, wished);
  if (operation._sent) operations._unanswered -= 1;
  operation._sent = false;
  operations._schedule(operation, nowS, config, random());
}
