/**
 * How long a client waits before it connects again (docs/protocol.md, `config`). Pure.
 *
 * A first connection does without: a file of its own, which is loaded later.
 */

import type { Config } from "./messages.ts";

/** Before connecting again. The first time quick, unless a gateway asked its many clients to spread; then within a bound that doubles. */
export function connectPauseS({ connect_min_s, connect_max_s }: Config, failures: number, dice: number, spreadS = 0): number {
  if (!failures) return Math.max(connect_min_s, Math.min(spreadS, connect_max_s)) * dice;
  return Math.min(connect_max_s, connect_min_s * 2 ** failures) * (0.5 + dice / 2);
}
