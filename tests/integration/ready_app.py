"""An app whose worker gets a broadcast task and a remote control command the moment it is ready."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import signals

from tests.integration.broadcast_app import QUEUES, broadcast
from tests.worker_app import make_app

APP = "tests.integration.ready_app"

if "LEDGER" in os.environ:
    app = make_app(os.environ["BROKER"], os.environ["LEDGER"], **json.loads(os.environ["CONF"]), **QUEUES)

    @signals.worker_ready.connect
    def speak(**kwargs: Any) -> None:
        """Send both, before the worker's event loop has begun."""
        broadcast(app, 1)
        app.control.rate_limit("add", "7/m")
