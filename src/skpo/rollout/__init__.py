"""Rollouts: plans, what they exchange with an engine, and the engines."""
