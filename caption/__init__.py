"""Feature caches and captions in, a trained captioner and its captions out."""
