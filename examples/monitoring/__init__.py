"""Alerts and a dashboard, and a picture of it."""
