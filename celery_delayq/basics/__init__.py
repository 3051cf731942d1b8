"""What every other room may use, without Redis, kombu and Celery.

descriptors  wait for some, be woken, close those that a forked child has inherited
errors       what is raised
finding      what a check found, and how bad it is
native       threads of the operating system, beside greenlets
text         numbers with their nouns, and text of unknown origin made safe to show
times        times as people give them
version      the version of this package
weak         calls of objects that may be gone
"""
