"""How processes are started: a pure LaunchSpec becomes a Request, and `execute` runs that Request unchanged."""
