"""Tools that several test files use; imported as `support`."""
