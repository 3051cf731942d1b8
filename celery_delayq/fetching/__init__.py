"""Fetching: takes messages from broker lists without losing any. It knows Redis, but not kombu.

consumer     Consumer: fetches messages, holds and acknowledges them
connection   FetchConnection: the connection on which a consumer fetches and acknowledges
departure    how a message leaves the in-flight list, and what the server still has to be told
held         the messages that a consumer holds
watchdog     Watchdog: renews leases, and recovers the messages of dead consumers
presence     which consumers are alive, and which are gone
process      whether the process of another consumer still runs
"""
