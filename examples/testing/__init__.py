"""A test suite to copy from, for an app that delays tasks."""
