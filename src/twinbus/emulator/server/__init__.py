"""The namespace, its listener, and the HTTP and control ports."""
