"""Orders, which are cancelled if they are not paid in time."""
