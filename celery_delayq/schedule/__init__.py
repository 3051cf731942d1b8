"""Periodic tasks without a beat process: each entry has one pending occurrence, an ordinary delayed message.

scripts      one typed function for each Lua script of the schedule
store        records, states and errors of entries; Redis only
encoding     schedules as data: crontab, interval, solar; their fingerprints
wallclock    the next time of a crontab, across changes of daylight saving
occurrences  when an entry runs next, and which missed times are made up for
entry        the definition of an entry: from the configuration, or as stored
message      the message of an occurrence, built by Celery and caught
planner      keeps the next occurrence of every entry planned
loop         the thread in which a planner runs
api          `delayq.schedule`
"""
