"""What an app or a task may set.

settings    settings of the app, read and checked
scheduler   whether workers plan the periodic tasks
keyed       what makes the key of a task
unique      what makes a task one of a kind
throttle    how often tasks with a key get a turn
task        Celery's task class, with the types of these options
"""
