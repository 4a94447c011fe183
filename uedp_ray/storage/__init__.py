"""File storage at a path or a URL: atomic writes and locks. Nothing here knows what the files hold."""
