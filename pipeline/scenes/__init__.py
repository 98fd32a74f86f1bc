"""Scenes: pictures of coloured, textured shapes with captions, boxes and the full truth."""
