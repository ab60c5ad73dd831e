"""A discrete-event model of one training step; `python -m benchmarks.simulate` is the command."""
