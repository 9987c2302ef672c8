/**
 * What a client keeps between its runs: the text of Thialfi's WriteState (Thialfi 3.3). Pure.
 *
 * JSON, but opaque to everyone else. The registrations are not in it: the application restates them (Thialfi 4.1.3).
 */

import { StateDamaged } from "./errors.ts";
import { is, record, short } from "./messages.ts";
import { STATE_FORMAT } from "./settings.ts";


export interface KeptState {
  readonly v: number;
  readonly application: string;
  readonly device: string;
  readonly token: string; // empty: no handshake was ever answered
}

const readState = record<KeptState>({ v: is<number>((format) => format === STATE_FORMAT), application: short, device: short, token: "" });

export function encodeState(application: string, device: string, token: string): string {
  return JSON.stringify({ v: STATE_FORMAT, application, device, token });
}

export function decodeState(data: string): KeptState {
  try {
    return readState(JSON.parse(data), "");
  } catch {
    throw new StateDamaged("not a client's state of this version");
  }
}

/** The token of the last run, and why there is none although a state was given. */
export function priorToken(data: string | null, application: string, device: string): { prior: string; ignored: string } {
  let prior = "";
  let ignored = "";
  try {
    if (data !== null) {
      const kept = decodeState(data);
      if (kept.application === application && kept.device === device) prior = kept.token;
      else ignored = `it belongs to ${owner(kept)}`;
    }
  } catch (damage) {
    ignored = (damage as StateDamaged).message;
  }
  return { prior, ignored };
}

/** Whose it is, for a person. */
export function owner({ application, device }: KeptState): string {
  return `device ${JSON.stringify(device)} of application ${JSON.stringify(application)}`;
}
