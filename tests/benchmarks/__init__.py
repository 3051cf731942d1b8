"""Benchmarks: `python -m tests.benchmarks [scenario ...]`.

They measure and judge nothing: whether a figure is reached is printed, and no test depends on it. What is compared is
measured in one run, in turns, on a private Redis, because the same machine is a different one a minute later; so
compare ratios within a run, not figures between runs.
"""
