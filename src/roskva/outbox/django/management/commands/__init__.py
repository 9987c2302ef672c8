"""Commands of the app, one module each."""
