"""What several test files use; imported as `support`."""
