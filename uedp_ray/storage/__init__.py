"""Files: whole or as they were, locked, at a path or a URL. Nothing here knows what they hold."""
