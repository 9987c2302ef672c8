"""A deterministic world that tries to break the promise: the real cores and shells, in one process, on virtual time, from one seed."""
