"""Transfer: moves due messages to their broker lists, on time. It knows neither Celery nor kombu.

loop          TransferLoop: a duty of a keeper: transfers, together with other loops
served        ServedQueues: which queues the loop serves, and what it knows about each
settings      how loops behave
lead          Lead: how long before they are due it moves messages
failover_log  FailoverLog: notices what a failover lost
"""
