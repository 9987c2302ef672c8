/**
 * What a client makes of the configuration that the server sends (docs/protocol.md, `config`). Pure.
 *
 * The server sets the policy, but a mistake there must not turn every client into a busy loop: what is out of reason is bounded.
 */

import type { Config } from "./messages.ts";

const PAUSE_MIN_S = 0.01;
const HEARTBEAT_MIN_S = 0.05;
const QUIET_MAX_S = 86_400;
const HEAD_BYTES = 4_096; // token, summary and braces
const CREDENTIAL_BYTES = 50_000; // 8,192 characters, every one of them escaped
const OBJECT_BYTES = 400; // a name of 128 bytes, every one of them escaped, with op, seqno, version and epoch

export function withinReason(config: Config): Config {
  const { max, min } = Math;
  const retry_min_s = max(PAUSE_MIN_S, config.retry_min_s);
  const connect_min_s = max(PAUSE_MIN_S, config.connect_min_s);
  return {
    ...config,
    heartbeat_s: max(HEARTBEAT_MIN_S, config.heartbeat_s),
    heartbeat_smear: min(0.5, max(0, config.heartbeat_smear)),
    keepalive_s: max(HEARTBEAT_MIN_S, config.keepalive_s),
    retry_min_s,
    retry_max_s: max(retry_min_s, config.retry_max_s),
    connect_min_s,
    connect_max_s: max(connect_min_s, config.connect_max_s),
    quiet_s: min(QUIET_MAX_S, max(0, config.quiet_s)),
    operations_per_message_max: max(1, config.operations_per_message_max),
  };
}

/** How many operations, acknowledgements or stated registrations fit one message, by number and by size at worst. */
export function objectsPerMessage(config: Config, withCredential = false): number {
  const headBytes = withCredential ? HEAD_BYTES + CREDENTIAL_BYTES : HEAD_BYTES;
  const fitting = Math.floor((config.message_bytes_max - headBytes) / OBJECT_BYTES);
  return Math.max(1, Math.min(config.operations_per_message_max, fitting));
}

/** From retry_min_s up to a bound that doubles with each attempt and ends at retry_max_s; `dice` is from 0 to 1. */
export function pauseS({ retry_min_s, retry_max_s }: Config, attempt: number, dice: number): number {
  return retry_min_s + dice * (Math.min(retry_max_s, retry_min_s * 2 ** (attempt + 1)) - retry_min_s);
}
