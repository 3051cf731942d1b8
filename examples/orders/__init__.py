"""A shop whose unpaid orders are cancelled on time; see README.md."""
