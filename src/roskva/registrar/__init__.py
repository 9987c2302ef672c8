"""The Registrar: a pure core that keeps registrations and owes notifications, and the service that runs it in a gateway."""
