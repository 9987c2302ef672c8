"""The Matcher's rules: which registered clients must learn of which version. Pure; Spark's tasks run them."""
