/** Tells when a page, or the machine, may have slept, and when a page is left: whatever of this the platform has. */

import type { Clock } from "./clock.ts";

const LOOK_S = 10;
const SLEPT_S = 5; // the time of day went so much further than the clock: the machine slept
const HIDDEN_S = 10; // who looks elsewhere for a moment has missed nothing: to ask means to be in doubt until the answer
const LATE_S = 150; // later than any browser's throttling of hidden tabs: the page was frozen

/** Several signs of one wake may come together. Answers how to stop listening. */
export function onWake(clock: Clock, wake: () => void, leave: () => void): () => void {
  const listening = new AbortController();
  const page = globalThis.document;
  const here = globalThis as unknown as EventTarget;
  const on = (target: EventTarget | undefined, type: string, listener: (event: Event) => unknown): void =>
    target?.addEventListener?.(type, listener, listening);
  let hiddenMs = Infinity;
  on(page, "visibilitychange", () => {
    if (page.visibilityState === "hidden") hiddenMs = Date.now();
    else if (Date.now() - hiddenMs >= HIDDEN_S * 1000) wake();
  });
  on(here, "online", wake);
  on(here, "pageshow", (event) => (event as PageTransitionEvent).persisted && wake()); // else it is only loaded
  on(here, "pagehide", leave);
  let seenS = clock.now();
  let seenMs = Date.now();
  const look = (): void => {
    const wallS = (Date.now() - seenMs) / 1000;
    const slept = wallS - (clock.now() - seenS) > SLEPT_S || wallS > LATE_S;
    seenS = clock.now();
    seenMs = Date.now();
    cancel = clock.after(LOOK_S, look);
    if (slept) wake();
  };
  let cancel = clock.after(LOOK_S, look);
  return () => {
    listening.abort();
    cancel();
  };
}
