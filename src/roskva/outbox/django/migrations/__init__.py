"""Migrations of the outbox's tables."""
