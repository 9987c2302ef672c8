"""Frozen transcripts of every version of the protocol, and what plays either side of them against somebody else's (docs/conformance.md).

`player` is the client's side, for checking a server; `stage` and `judge` are the server's side, for checking a client.
"""
