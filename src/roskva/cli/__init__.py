"""The command line: starts the service, and lets a person or a script talk to it. Nothing else imports this room."""

from roskva.cli.main import main

__all__ = ["main"]
