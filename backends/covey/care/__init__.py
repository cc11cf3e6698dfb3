"""Supervises a server's processes: finds those that have ended or hang, ends the latter and brings both back.

    evidence                              a bound (rules.py)      an end              a way back
    paused, spinning, slow to load   ->   seconds without   ->    its process   ->    revival.py reloads the model,
    silence on a port, a late call        starvation              is killed           the launcher starts the server

Only one process brings back: the launcher (supervisor.py).
All others end what hangs, and notice when it is there again (presence.py).

supervisor.py  follows one server's processes, judges them and has models reloaded
health.py      what is known of one process;  rules.py: when it hangs
calls.py       the orchestrator's calls to target and drafters, and which of them hang
silence.py     ends a process whose port does not answer
presence.py    tells a model's process which other models of its server have come and ended
control.py     load, unload and index over HTTP;  processes.py: lists processes;  starved.py: who lacks a processor
deaths.py      tells the front of deaths;  restarts.py: when a server is started again;  watch.py: looks periodically
"""
