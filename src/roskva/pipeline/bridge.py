"""The Bridge: translates each application's form of an update into the standard one (Thialfi 4, Figure 3).

`bridge(df, applications)` adds to the rows of the feed what their values hold, taken out by column expressions in the JVM, so that no
Python process is needed for it. Only what is plain is translated here: object and version are text or an integer, and so is the source
if there is one. Everything else is left null and decided by `matcher.forms`, whose rules are the ones that count. Starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from roskva.config import ApplicationSettings
from roskva.feed.interface import UPDATES
from roskva.matcher.forms import Form

# What `bridge` adds. Texts are handed on as bytes: a text column that is not UTF-8 would end the task that reads it.
COLUMNS: Final = ("object", "version", "source", "epoch", "again")
_PLAIN: Final = ("STRING", "BIGINT")
_ABSENT: Final = "VOID"


def form_of(application: ApplicationSettings) -> Form:
    return Form(application.object_path, application.version_path, application.source_path)


def bridge(df: DataFrame, applications: Mapping[str, ApplicationSettings]) -> DataFrame:
    """Rows of the feed, with object, version, source, epoch and again of updates; null for registrations and what is not plain."""
    text = F.try_validate_utf8(F.col("value").cast("string"))
    document = F.when(F.col("topic") == UPDATES, F.try_parse_json(text))
    parsed = df.withColumn("document", document).withColumn("application", F.col("headers").cast("string"))
    by_form: dict[Form, list[str]] = {}
    for name, application in applications.items():
        by_form.setdefault(form_of(application), []).append(name)

    def at(which: int) -> Column:
        """The field's path depends on the application; those that share a form share a branch."""
        column = F.lit(None).cast("variant")
        for form, names in by_form.items():
            field = F.try_variant_get("document", _json_path(form[which]), "variant")
            column = F.when(F.col("application").isin(names), field).otherwise(column)
        return column

    fields = parsed.select(
        *df.columns,
        at(0).alias("object_field"),
        at(1).alias("version_field"),
        at(2).alias("source_field"),
        F.try_variant_get("document", "$.epoch", "long").alias("epoch"),
        F.try_variant_get("document", "$.again", "boolean").alias("again"),
    )
    source_type = F.schema_of_variant("source_field")
    plain = (
        F.schema_of_variant("object_field").isin(*_PLAIN)
        & F.schema_of_variant("version_field").isin(*_PLAIN)
        & (source_type.isNull() | source_type.isin(*_PLAIN, _ABSENT))
    )
    return fields.select(
        *df.columns,
        *(F.when(plain, F.try_variant_get(f"{name}_field", "$", "string")).cast("binary").alias(name) for name in COLUMNS[:3]),
        F.col("epoch"),
        F.col("again"),
    )


def _json_path(path: str) -> str:
    """`a.b` as JSON path. Keys are quoted: an application's field may have any name without a dot."""
    quoted = "".join("['" + key.replace("\\", "\\\\").replace("'", "\\'") + "']" for key in path.split("."))
    return "$" + quoted
