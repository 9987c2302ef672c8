/** What a session does when the page, or the machine, may have slept (wake.ts tells when). */

import type { Session } from "./session.ts";
import { ANSWER_S, READS_S, WAKE_S } from "./settings.ts";

/** The connection may be gone without a word: speak, and hang up unless there is an answer soon. Without one, connect now. */
export function wake(session: Session): void {
  const nowS = session._now();
  if (session._over() || nowS - session._wokeS < WAKE_S) return; // several signs of one wake come together
  session._wokeS = nowS;
  session._endPause();
  const { _link: link } = session;
  if (!link) return;
  session._perform(session._core.disconnected());
  const { clock } = session._options;
  clock.after(READS_S, () => {
    if (session._link !== link) return;
    session._connects();
    const words = session._words;
    clock.after(ANSWER_S, () => {
      if (session._words === words) link._hangUp("silent after a wake", true);
    });
  });
}
