"""Periodic tasks without a beat process: each entry has one pending occurrence, an ordinary delayed message.

scripts      one typed function for each Lua script of the schedule
store        records, states and errors of entries; Redis only
encoding     schedules as data: crontab, interval, solar; their fingerprints
wallclock    the next time of a crontab, across changes of daylight saving
occurrences  when an entry runs next, and which times were missed
entry        the definition of an entry
configured   the entries in the configuration of an app
moves        where an entry goes from where it is
message      the message of an occurrence, built by Celery and caught
mould        messages that are made after the model of one that Celery built
attendance   since when planners are there, and whose configuration counts
known        what a planner knows about an entry
roster       all that a planner knows, and how it learns of changes
planner      keeps the next occurrence of every entry planned
loop         the thread in which a planner runs
service      a planner loop for an app
api          `delayq.schedule`
redbeat      the entries of RedBeat, to move from it
"""
