"""The parts that every process needs, whatever it serves: threads, guards, private files, log lines."""
