"""Sending many tasks at once.

bulk        apply_async_many: many tasks in a few round trips
series      tasks that differ only in their arguments
onlookers   whether a signal, event, route or override looks at each task as it is sent
"""
