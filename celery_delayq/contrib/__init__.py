"""What frameworks need: a package for each."""
