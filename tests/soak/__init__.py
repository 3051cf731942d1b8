"""Faults on a running scene of servers and workers, and a ledger that tells what became of each task.

faults     what is done to the scene
refusals   what Redis refuses, and for how long
periodic   periodic tasks among the load, and what became of them
cluster    the same on a Redis Cluster: its scene, and what is done to it
setting    what a scene is like
scene      servers, workers, and who was hurt when
publisher  publishes at a steady rate, and books what became of it
proxy      a network that can be slow, cut, or silent
verdict    lost, cut off, twice, early and late, told apart
looks      what is asked of workers, servers and keys
logs       tracebacks in the workers' logs
soak       one run: a fault on a scene, and its verdict
"""
