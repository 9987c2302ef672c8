"""The gateway: the public port (WebSocket and HTTP), and the Registrars behind it, joined with those of other gateways."""
