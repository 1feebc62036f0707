"""One file a transport: everything that knows one broker and its client."""
