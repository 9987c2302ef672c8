"""The two tables, as they are in the beginning."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]
    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="OutboxRow",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("application", models.CharField(max_length=64)),
                ("object", models.CharField(max_length=192)),
                ("version", models.BigIntegerField(null=True)),
                ("source", models.CharField(max_length=128, null=True)),
                ("created_ms", models.BigIntegerField()),
                ("refused", models.CharField(max_length=64, null=True)),
            ],
            options={"db_table": "roskva_outbox", "indexes": [models.Index(fields=["application", "id"], name="roskva_outbox_waiting")]},
        ),
        migrations.CreateModel(
            name="OutboxRelay",
            fields=[
                ("application", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("version", models.BigIntegerField()),
                ("holder", models.CharField(max_length=64)),
                ("until_ms", models.BigIntegerField()),
            ],
            options={"db_table": "roskva_outbox_relay"},
        ),
    )
