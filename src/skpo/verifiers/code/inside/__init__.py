"""What runs inside the sandbox, and what shuts it. Only the standard library: it is loaded without the rest of `skpo`."""
