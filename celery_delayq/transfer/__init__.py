"""Transfer: moves due messages to their broker lists, on time. It knows neither Celery nor kombu.

loop          TransferLoop: transfers on one connection, together with other loops
known_queues  KnownQueues: which queues it knows
watched       WatchedQueues: which of them it watches, and what it knows about each
settings      how loops behave
lead          Lead: how long before they are due it moves messages
history       History: notices what a failover lost
thread        LoopThread: a thread that waits on its own subscription
"""
