"""Rollouts on Ray: actors that hold an engine each (`pool` drives them, `worker` is what runs in them)."""
