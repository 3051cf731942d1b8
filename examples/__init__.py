"""Stories told with celery_delayq, one folder each, and the private Redis they run on."""
