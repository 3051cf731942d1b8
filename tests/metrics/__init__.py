"""What workers count for operators, and what Prometheus reads."""
