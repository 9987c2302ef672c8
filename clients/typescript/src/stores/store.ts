/**
 * Where a client keeps what it is between its runs (docs/protocol.md, What a client keeps). Engines: memory.ts, webstorage.ts, file.ts.
 *
 * One running client per store, or one per page with tabs: clients that share a state supersede each other.
 */

import { decodeState, encodeState, owner } from "../core/state.ts";
import type { StateDamaged } from "../core/errors.ts";
import { InvalidSetting } from "../errors.ts";

export interface StateStore {
  /** What the last run wrote; null if there is nothing. Called once, first. */
  read(): string | null | Promise<string | null>;
  /** Durable when this returns, or is fulfilled: it is awaited before the client speaks on. */
  write(state: string): void | Promise<void>;
  /** The client was forgotten: nothing may be left. */
  delete(): void | Promise<void>;
  /** The run is over. */
  close?(): void | Promise<void>;
}

export interface Identity {
  readonly device: string;
  readonly _prior: string; // the token of the last run
  readonly _ignored: string; // why what was kept is of no use, if it is not
}

/** Which device this is (`device`, if given, must agree), and what is known from the last run. What is another's is left alone, and refused. */
export async function openIdentity(store: StateStore, application: string, device: string): Promise<Identity> {
  const kept = await store.read();
  let ignored = "";
  if (kept !== null) {
    try {
      const state = decodeState(kept);
      if (state.application === application && (!device || state.device === device)) {
        return { device: state.device, _prior: state.token, _ignored: ignored };
      }
      throw new InvalidSetting(`The state belongs to ${owner(state)}.`);
    } catch (error) {
      if (error instanceof InvalidSetting) throw error;
      ignored = (error as StateDamaged).message;
    }
  }
  device ||= unguessable();
  await store.write(encodeState(application, device, ""));
  return { device, _prior: "", _ignored: ignored };
}

/** 128 bits of chance, as text. */
export function unguessable(): string {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("-");
}
