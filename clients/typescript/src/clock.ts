/**
 * Where time comes from: the platform's clock and timers, or in tests a clock that is moved by hand (testing/clock.ts).
 */

export interface Clock {
  /** Seconds from some moment on. Never falls. */
  now(): number;
  /** Call back once, after so many seconds. What it answers cancels that. */
  after(delayS: number, callback: () => void): () => void;
}

const TIMER_MS_MAX = 2 ** 31 - 1; // a longer one would fire at once; who waits so long looks again

export const systemClock: Clock = {
  now: () => performance.now() / 1000,
  after(delayS, callback) {
    const timer = setTimeout(callback, Math.min(TIMER_MS_MAX, Math.max(0, delayS * 1000)));
    return () => clearTimeout(timer);
  },
};
