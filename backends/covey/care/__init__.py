"""Care for a server's processes: who lives, who hangs, and who brings back what has ended.

    evidence                              a bound (rules.py)      an end              a way back
    paused, spinning, slow to load   ->   seconds without   ->    its process   ->    revival.py reloads the model,
    silence on a port, a late call        starvation              is killed           the launcher starts the server

One party brings back: the launcher, or the orchestrator where tritonserver was started without one (care.py). All
others end what hangs, and see when it is there again (presence.py).

care.py        follows one server's processes, judges them and has models reloaded
health.py      what is known of one process;  rules.py: what follows from it
calls.py       the orchestrator's calls to target and drafters, and which of them hang
silence.py     ports that should answer and do not
presence.py    what a model's process sees of the others of its server
control.py     load, unload and index over HTTP;  processes.py: who is there;  starved.py: who wants a processor
deaths.py      what the front is told;  restarts.py: when a server is started again;  watch.py: a look, again and again
"""
