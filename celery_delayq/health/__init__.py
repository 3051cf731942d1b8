"""Health: whether the server, the settings and the processes are as they should be.

finding      what a check found, and how bad it is
servers      the servers that are checked, and what follows if one is away
version, persistence, memory, replication     checks of a server
options      checks the settings of an app
at_start     all of this, for workers
"""
