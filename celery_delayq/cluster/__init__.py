"""Redis Cluster: which node has which key, and a client that sends each command there. Knows only Redis.

For others:

client        `Routed`, a `redis.Redis` whose commands go to the nodes of their keys
pipeline      the same for a pipeline
topology      which master serves which hash slot
node          a node, and the connections to it
hanging       which nodes do not answer now
names         names of lists that share a hash slot

The way of a command, from the client to a node:

command_keys  which of its arguments is the key
router        find the node for a slot, and follow the slot
dispatch      send it, or those of a pipeline, and again what a node did not execute
round_trip    what goes to one node on one connection
"""
