"""The parts that run in a Celery worker.

program        what connections ask a worker, and tell it: it counts, and lets tasks fail that were set aside
bootsteps      start and stop the loops
rights         names the missing rights if the worker ends because of them
reconnect      tries to connect several times a second
lateness       tells OpenTelemetry how late a task began
received       tells monitors the eta of a delayed task
handover       tracks the tasks that the pool has taken
failures       keeps tasks that fail beside the dead letters
invalid_task   finds the defect of a message that no worker can take
commands       remote control commands
"""
