"""The two tables of the outbox (rows.py), as Django's models."""

from __future__ import annotations

from django.db import models

from roskva.outbox.rows import OBJECT_CHARACTERS_MAX, RELAYS, TABLE


class OutboxRow(models.Model):  # type: ignore[misc]
    """Something published, until it is relayed."""

    id = models.BigAutoField(primary_key=True)
    application = models.CharField(max_length=64)
    object = models.CharField(max_length=OBJECT_CHARACTERS_MAX)
    version = models.BigIntegerField(null=True)
    source = models.CharField(max_length=128, null=True)
    created_ms = models.BigIntegerField()
    refused = models.CharField(max_length=64, null=True)

    class Meta:
        app_label = "roskva_outbox"
        db_table = TABLE
        indexes = (models.Index(fields=["application", "id"], name=f"{TABLE}_waiting"),)

    def __str__(self) -> str:
        return f"{self.application}/{self.object}"


class OutboxRelay(models.Model):  # type: ignore[misc]
    """The counter of an application's versions, and which relay works."""

    application = models.CharField(max_length=64, primary_key=True)
    version = models.BigIntegerField()
    holder = models.CharField(max_length=64)
    until_ms = models.BigIntegerField()

    class Meta:
        app_label = "roskva_outbox"
        db_table = RELAYS

    def __str__(self) -> str:
        return str(self.application)
