"""Health: whether the server, the settings and the processes are as they should be.

advice       what to do about an error of a server
servers      the servers that are checked, and what follows if one is away
server_checks, permissions     checks of a server
queues, planning     checks of what processes do there
options      checks the settings of an app
called       checks that it has a DelayQ
check        all of this, of a broker
connecting   a connection to the broker, or why there is none
whole        all of this, of an app: `DelayQ.check`, `celery delayq check`
at_start     some of this, for workers
"""
