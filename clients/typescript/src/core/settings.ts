/**
 * Every number by which the core decides that is not the server's to say. Pure.
 *
 * In one place, apart from who uses them: so they are found, and a bundler puts the number where the name stands.
 */

export const RETIRED_MAX = 100_000; // marks of unregistered objects
export const DELIVERIES_MAX = 4; // registrations of one object with an open delivery; more than two need lost messages
export const MESSAGES_UNANSWERED_MAX = 4;
export const RESTATING_PAUSES_MAX = 10; // the application may take so many retry_min_s to restate its registrations after a restart
export const FORGET_SETTLES_S = 5; // a client that signs out waits so long for its unregistrations to reach the Matcher
export const SUPERSEDED_AGAIN_S = 60;
export const HINT_INTERVAL_S = 60;
export const BUCKETS = 256;
export const FULL_SYNC_MAX = 256; // up to so many registrations a sync sends all of them
export const EPOCH_MAX = 2 ** 32 - 1;
export const NOTIFY_INTERVAL_MS_MAX = 3_600_000;
export const NAME_BYTES_MAX = 128;
export const DEVICE_BYTES_MAX = 128;
export const STATE_FORMAT = 1;
export const CREDENTIAL_CHARACTERS_MAX = 8_192;
export const DIGEST_BITS = 128;
