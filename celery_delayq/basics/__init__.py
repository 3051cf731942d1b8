"""What every other room may use, without Redis, kombu and Celery.

errors    what is raised
text      numbers with their nouns, and text of unknown origin made safe to show
times     times as people give them
version   the version of this package
"""
