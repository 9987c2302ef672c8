"""Tells Registrars what was found, from the pipeline or a gateway, and writes in their stead if they do not answer. Imports no Spark."""
