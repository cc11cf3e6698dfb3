"""Tests a server's robustness: `python -m loadtest.attack SCENARIO`.

__main__.py     the command line, one JSON for each scenario
launched.py     the server: a launcher with its front, and all processes below it
streams.py      clients that ask the same again and again, record times, and know every answer
verdict.py      the verdict on a run: problems, and recovery times
faults.py       processes killed, paused and spun under load, full places: is any answer another one?
  injection.py, spin.py, rooms.py  the faults
fuzz.py         requests that no client would send: is every answer documented?
  messages.py, doors.py  the messages, and how they are sent
"""
