"""Our own Java: the stand-in for the JavaScript engine that Java 15 removed, and its jar."""
