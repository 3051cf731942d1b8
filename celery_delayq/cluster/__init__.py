"""Redis Cluster: which node has which key, and a client that sends each command there. Knows only Redis.

topology   which master serves which hash slot, and the connections to each
client     `Routed`, a `redis.Redis` whose commands go to the nodes of their keys
names      names of lists that share a hash slot
"""
