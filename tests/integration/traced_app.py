"""The app of `tests.worker_app`, traced with OpenTelemetry. Spans are lines of JSON in the file that `SPANS` names.

`INSTRUMENT` says when: `import` (before the worker's parts are made), or `process` (when a process of the pool starts,
as the manual of the instrumentation has it). `LINKS` says whether spans have links or parents.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery import signals
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from tests.worker_app import app

__all__ = ["app"]


def instrument(**_: Any) -> None:
    """Trace this process."""
    file = Path(os.environ["SPANS"]).open("a", buffering=1)  # noqa: SIM115
    exporter = ConsoleSpanExporter(out=file, formatter=lambda span: f"{span.to_json(indent=None)}\n")
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    CeleryInstrumentor().instrument(tracer_provider=provider, use_span_links=os.environ["LINKS"] == "1")


if os.environ["INSTRUMENT"] == "import":
    instrument()
else:
    signals.worker_process_init.connect(instrument, weak=False)
