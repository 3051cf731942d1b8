"""Delayed queues in Redis, in the layout of Redisson's RDelayedQueue. This package knows neither Celery nor kombu.

lua/, scripts   atomic operations, and one typed function for each
keys, codec     names of keys, bytes of entries
entry           an entry of a timeout set, as it is read and passed to scripts
registry        the broker lists that may have waiting messages
delayed_queue   DelayedQueue: offer, transfer, take
waiting         its part for messages that wait: cancel, find, page, amend, remove, release
ready           its part for messages that no consumer has taken yet: read, take back
measuring       numbers of a list, now and in the past
histograms      how its lateness is counted
dead_letter     a message that was set aside, or a failed task, and how it is stored
dead_letters    messages that were set aside, with the reason, and failed tasks: page, find, requeue, purge
set_aside       its scripts
cursors         what the cursor of a page is made of
orphans         delayed queues that Java left behind
clock           the server's clock
keeper          Keeper: the thread beside the tasks of a process at one server, and its connections
subscription    hears what is published, and which lists are written to
connections     errors that mean a lost connection; outages; clients of one server and of a cluster
redirection     answers of a node of a cluster that does not serve a slot
"""
