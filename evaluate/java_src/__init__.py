"""Our own Java beside SPICE: a stand-in for the script engine that Java 15 removed, a guard."""
