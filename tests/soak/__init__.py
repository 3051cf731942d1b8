"""Faults on a running scene of servers and workers, and a ledger that tells what became of each task.

faults     what is done to the scene
cluster    the same on a Redis Cluster: its scene, and what is done to it
scene      servers, workers, and who was hurt when
publisher  publishes at a steady rate, and books what became of it
proxy      a network that can be slow, cut, or silent
verdict    lost, cut off, twice, early and late, told apart
logs       tracebacks in the workers' logs
soak       one run: a fault on a scene, and its verdict
"""
