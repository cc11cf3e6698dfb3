"""Supervises a server's processes: kills those that hang, and brings back the models of those that have ended.

    evidence                              a bound (rules.py)      an end              a way back
    paused, spinning, slow to load   ->   seconds without   ->    its process   ->    revival.py reloads the model,
    silence on a port, a late call        starvation              is killed           the launcher starts the server

The launcher kills what hangs and brings models back (supervisor.py, silence.py). The orchestrator kills targets and
drafters whose calls hang (calls.py), and knows which have a process (presence.py). The front only reads deaths.py.

    supervisor.py  follows one server's processes, kills those that hang and has models reloaded
    health.py      the health of one process;  rules.py: when it hangs
    calls.py       the orchestrator's calls to target and drafters, and which of them hang
    silence.py     kills a process whose port does not answer
    presence.py    tells a model's process which other models of its server have come and ended
    control.py     load, unload and index over HTTP;  processes.py: lists processes;  starved.py: who lacks a processor
    deaths.py      tells the front of deaths;  restarts.py: when a server is restarted;  watch.py: looks periodically
"""
