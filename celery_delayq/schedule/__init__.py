"""Periodic tasks without a beat process: each entry has one pending occurrence, an ordinary delayed message.

scripts      one typed function for each Lua script of the schedule
store        records, states and errors of entries; knows only Redis
encoding     schedules as data: crontab, interval, solar; their fingerprints
wallclock    the next time of a crontab, across daylight saving changes
occurrences  when an entry runs next, and which times were missed
definition   the definition of an entry
configured   the entries in the configuration of an app
transitions  the next step of an entry
message      the message of an occurrence: built by Celery, captured instead of sent; further ones after it
attendance   since when planners have been running, and whose configuration counts
entry        what a planner knows about one entry
entries      what a planner knows about all entries, and how it learns of changes
definitions  which definition of an entry counts, and what is recorded of it
problems     why entries cannot be planned
agenda       which entry a planner looks at next
planner      keeps the next occurrence of every entry planned
loop         the thread that runs a planner
service      a planner loop for an app
forecast     when an entry runs next, also if it was changed
api          `delayq.schedule`
found        an entry of another scheduler, for migration
redbeat      reads the entries of RedBeat
django_celery_beat    reads the periodic tasks of django_celery_beat
"""
