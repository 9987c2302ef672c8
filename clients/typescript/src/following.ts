/**
 * Up to when a client was told of every change of an object, as far as the service knows: as src/roskva/client/following.py. Pure.
 *
 * `inSync` speaks of all registrations at once, and is false whenever any of them is on its way. Whoever holds a copy of one object wants
 * to know of that one. Its registration is confirmed; the server speaks to this session; and since the connection began it has once been
 * in sync, or has lived for CATCH_UP_S: what waited for a client that returns is the first thing that it is sent. From then on changes are
 * told as they happen. While wishes are open the summaries differ and mean nothing; if they differ without one, nothing is sure.
 */

import type { Action } from "./core/actions.ts";
import type { ClientCore } from "./core/core.ts";
import type { Name } from "./core/model.ts";

const CATCH_UP_S = 10;

export class Following {
  /** The wishes of which nothing was heard yet: the caller adds them. */
  readonly _open = new Set<Name>();
  readonly #core: ClientCore;
  #sinceS = -Infinity; // the first word of this session over this connection
  #caughtUp = false;
  #untilS = -Infinity;

  /** Of a connection that may have begun before. */
  constructor(core: ClientCore, nowS: number) {
    this.#core = core;
    for (const name of core.desired._unconfirmed) this._open.add(name);
    this._heard(nowS);
  }

  /** A connection, or a session, begins. */
  _begins(): void {
    this.#sinceS = -Infinity;
    this.#caughtUp = false;
  }

  _told(action: Action): void {
    if (action.kind === "statusChanged" || (action.kind === "registrationFailed" && !action.transient)) this._open.delete(action.name);
  }

  /** A message came, and the core has taken it in. */
  _heard(nowS: number): void {
    if (!this.#core.alive(nowS)) return;
    if (this.#sinceS === -Infinity) this.#sinceS = nowS;
    if (this._follows(nowS)) this.#untilS = nowS;
  }

  /** Null: the object's registration is not confirmed. */
  _toldUntil(nowS: number, name: Name): number | null {
    const { desired } = this.#core;
    if (!desired.has(name) || desired._unconfirmed.has(name)) return null;
    return this._follows(nowS) ? nowS : this.#untilS; // or the last time at which something was heard and all was well
  }

  /** Changes of every confirmed registration are told as they happen. */
  _follows(nowS: number): boolean {
    const core = this.#core;
    if (!core.alive(nowS) || this.#sinceS === -Infinity || !(this._open.size > 0 || core.confirmed(nowS))) return false;
    return (this.#caughtUp ||= core.inSync(nowS) || nowS - this.#sinceS >= CATCH_UP_S);
  }
}
