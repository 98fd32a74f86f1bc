"""Images in, feature caches out."""
