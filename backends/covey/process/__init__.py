"""The parts that every process needs: threads, guards, private files, log lines."""
