"""The Bridge: translates each application's form of an update into the standard one (Thialfi 4, Figure 3).

`bridge(df, applications)` adds to the rows of the feed what their values hold, taken out by column expressions in the JVM, so that no
Python process is needed for it. What it finds counts if it is plain: object and version are strings or integers, and so is the source
if there is one. Everything else is decided by `matcher.forms`, whose rules are the ones that count; and what is in the standard form
already passes as it is. Starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from roskva.config import ApplicationSettings
from roskva.matcher.forms import STANDARD, Form, form_of

# What `bridge` adds. Texts are handed on as bytes: a text column that is not UTF-8 would end the task that reads it.
COLUMNS: Final = ("object", "version", "source", "kinds")


def bridge(df: DataFrame, applications: Mapping[str, ApplicationSettings]) -> DataFrame:
    """Rows of the feed, with object, version and source as text, and their kinds in JSON; null where there is nothing to translate.

    Every expression costs planning in every micro-batch: a first version with the checks in it planned for 24 ms where one without
    the Bridge planned for 12 (medians of one run each, on a busy machine). And a row that is taken apart costs some 40 microseconds, where
    the Matcher's task needs two to read the standard form. So there is no expression while no application has a form of its own.
    """
    forms: dict[Form, list[str]] = {}
    for name, settings in applications.items():
        if form_of(settings) != STANDARD:
            forms.setdefault(form_of(settings), []).append(name)
    if not forms:
        nothing = F.lit(None)
        return df.select(*df.columns, *(nothing.cast("binary").alias(name) for name in COLUMNS[:3]), nothing.cast("string").alias("kinds"))
    application = F.split_part(F.col("headers").cast("string"), F.lit(" "), F.lit(1)).alias("application")
    translated = [name for names in forms.values() for name in names]
    document = F.try_parse_json(F.when(F.col("application").isin(translated), F.col("value").cast("string"))).alias("document")
    df_parsed = df.select(*df.columns, application).select(*df.columns, "application", document)
    fields = [_field(which, forms) for which in range(3)]
    kinds = F.concat_ws(",", *(F.schema_of_variant(field) for field in fields))
    return df_parsed.select(
        *df.columns,
        *(F.try_variant_get(field, "$", "string").cast("binary").alias(name) for name, field in zip(COLUMNS, fields, strict=False)),
        kinds.alias("kinds"),
    )


def _field(which: int, forms: Mapping[Form, list[str]]) -> Column:
    """One of a form's three fields. Its path depends on the application; those that share a path share a branch."""
    names_by_path: dict[str, list[str]] = {}
    for form, names in forms.items():
        names_by_path.setdefault(form[which], []).extend(names)
    column: Column | None = None
    for path, names in names_by_path.items():
        field = F.try_variant_get("document", _json_path(path), "variant")
        column = field if column is None else F.when(F.col("application").isin(names), field).otherwise(column)
    assert column is not None
    return column


def _json_path(path: str) -> str:
    """`a.b` as JSON path. Keys are quoted: an application's field may have any name without a dot."""
    return "$" + "".join(f'["{key}"]' for key in path.split("."))
