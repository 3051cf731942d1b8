"""Delayed queues in Redis, in the layout of Redisson's RDelayedQueue. This package knows neither Celery nor kombu.

lua/, scripts   atomic operations, and one typed function for each
keys, codec     names of keys, bytes of entries
entry           an entry of a timeout set, as it is read and passed to scripts
registry        the broker lists that may have waiting messages
shared_registry the same, read once for all loops of a process
delayed_queue   DelayedQueue: offer, cancel, find, page, amend, remove, release, transfer, take
dead_letters    messages that were set aside, with the reason: page, find, requeue, purge
cursors         what the cursor of a page is made of
orphans         delayed queues that Java left behind
tidying         removes places in the index that other programs left behind
clock           the server's clock
connections     errors that mean a lost connection; outages
"""
