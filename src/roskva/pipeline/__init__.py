"""The data pipeline on Spark: from the feed through Bridge and Matcher to the Registrars, in two streaming queries."""
