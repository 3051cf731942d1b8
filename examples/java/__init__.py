"""Java and Celery share delayed queues."""
