"""Tasks that are one of a kind, or take turns."""
