/**
 * What a client keeps between its runs: the text of Thialfi's WriteState (Thialfi 3.3). Pure.
 *
 * JSON, but opaque to everyone else. The registrations are not in it: the application restates them (Thialfi 4.1.3).
 */

import { StateDamaged } from "./errors.ts";
import { anyWhole, or, record, short } from "./messages.ts";

export const STATE_FORMAT = 1;

export interface KeptState {
  readonly v: number;
  readonly application: string;
  readonly device: string;
  readonly token: string; // empty: no handshake was ever answered
}

const readState = record<KeptState>({ v: anyWhole, application: short, device: short, token: or("", short) });

export function encodeState(application: string, device: string, token: string): string {
  return JSON.stringify({ v: STATE_FORMAT, application, device, token });
}

export function decodeState(data: string): KeptState {
  let state: KeptState;
  try {
    state = readState(JSON.parse(data), "");
  } catch {
    throw new StateDamaged("not a client's state: it is not JSON, or a field is missing or not of its form");
  }
  if (state.v !== STATE_FORMAT) throw new StateDamaged(`format ${state.v} is unknown to this version of the library`);
  return state;
}

/** The token of the last run, and why there is none although a state was given. */
export function priorToken(data: string | null, application: string, device: string): { prior: string; ignored: string } {
  if (data === null) return { prior: "", ignored: "" };
  let kept: KeptState;
  try {
    kept = decodeState(data);
  } catch (damage) {
    if (!(damage instanceof StateDamaged)) throw damage;
    return { prior: "", ignored: damage.message };
  }
  if (kept.application !== application || kept.device !== device) {
    return { prior: "", ignored: `it belongs to device ${JSON.stringify(kept.device)} of application ${JSON.stringify(kept.application)}` };
  }
  return { prior: kept.token, ignored: "" };
}
