/**
 * What a client does not need for its first connection, and can do without for as long as it must: other channels, when to ask whether a
 * connection still stands, many registrations, what caches, loops and signing out need. A session loads this as soon as the service has said
 * something, or a connection fails: so it is there before the page's own server may be gone. If it cannot be loaded, it is tried again when
 * it is needed next, which in some browsers is in vain; README.md (What is loaded when) says what a client does without it.
 */

import { rest } from "./core/rest.ts";
import { Following } from "./following.ts";
import type { Session } from "./session.ts";
import { onWake } from "./wake.ts";
import { wake } from "./waking.ts";

export { Connector } from "./connector.ts";
export { forget } from "./core/forgetting.ts";
export { loop } from "./loop.ts";

/** The session is whole from now on. */
export function complete(session: Session): void {
  const { _core: core, _options: options } = session;
  core._rest = rest;
  session._following = new Following(core, session._now());
  session.wake = () => wake(session);
  session._unlisten = onWake(options.clock, session.wake, () => session._link?._hangUp("the page was left"));
  session._perform([]); // there is more to be known, of what is followed
}
