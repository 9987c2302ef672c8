"""How Django knows the app: by the label roskva_outbox."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxConfig(AppConfig):  # type: ignore[misc]
    name = "roskva.outbox.django"
    label = "roskva_outbox"
    verbose_name = "Roskva's outbox"
    default_auto_field = "django.db.models.BigAutoField"
