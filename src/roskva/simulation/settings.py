"""The settings of the service in a simulated world, from its knobs."""

from __future__ import annotations

from roskva.config import ApplicationSettings, Settings
from roskva.simulation.knobs import Knobs


def settings_of(knobs: Knobs) -> Settings:
    # Shorter than in service, in the same proportions: a healed world is at rest within minutes of its own time.
    pace = knobs.pace
    demo = ApplicationSettings(
        heartbeat_s=knobs.heartbeat_s * pace,
        offline_s=4 * knobs.heartbeat_s * pace,
        keepalive_s=10.0 * pace,
        retry_min_s=1.0,
        retry_max_s=8.0 * pace,
        connect_max_s=8.0 * pace,
        resend_min_s=1.0,
        resend_max_s=8.0 * pace,
        notify_interval_ms=knobs.notify_interval_ms,
    )
    return Settings(
        partitions=knobs.partitions,
        applications={"demo": demo},
        fan_out_above=knobs.fan_out_above,
        records_per_batch_max=knobs.records_per_batch_max,
        rows_cached_max=knobs.rows_cached_max,
        outstanding_max=knobs.outstanding_max,
        operations_per_message_max=knobs.operations_per_message_max,
        settling_s=knobs.settling_s * pace,
        ack_wait_ms=knobs.ack_wait_ms,
        fast_path=knobs.fast_path,
        propagation_timeout_s=1.0,
        member_heartbeat_s=1.0 * pace,
        member_timeout_s=5.0 * pace,
        mark_poll_s=1.0 * pace,
        mark_bucket_s=4.0 * pace,
        mark_retention_s=40.0 * pace,
        scan_s=15.0 * pace,
        scratch_every_s=10.0 * pace,
        feed_retention_s=0.0,  # what is consumed is trimmed whenever chance says so
        client_retention_days=knobs.client_retention_days,
        outage_days_max=knobs.outage_days_max,
        object_retention_days=knobs.object_retention_days,
        operations_waiting_max=knobs.operations_waiting_max,
        unfinished_max=knobs.unfinished_max,
        publish_waiting_bytes_max=knobs.publish_waiting_bytes_max,
    )
