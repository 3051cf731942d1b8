"""Sending many tasks at once.

bulk        apply_async_many: many tasks in a few round trips
template    what tasks have in common that differ only in time, arguments and id
hooks       whether a signal, event, route or override looks at each task as it is sent
"""
