"""Fetching: takes messages from broker lists without losing any. It knows Redis, but not kombu.

consumer      Consumer: fetches messages, as long as it has leases
holding       its base: the messages that it holds, and what becomes of them
conversation  what it says on its connection, and what it hears
wire          that connection, on which any number of commands are under way
resp          reads what comes on it
abandoned     connections whose answers nobody reads
held          a message that a consumer holds, and how it is rewritten for redelivery
outbox        tells the server what has become of messages: where they go, and the commands for that
isolation     a message that is held alone
unique_keys   what becomes of the unique keys of the messages
lease         the leases on the lists
watchdog      Watchdog: a duty of a keeper: renews leases, and looks after dead consumers
others        what it reads of other consumers
presence      which consumers are alive, and which are gone
process       whether the process of another consumer still runs
recovery      puts the messages of dead consumers back
"""
