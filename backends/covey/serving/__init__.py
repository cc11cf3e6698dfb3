"""A public model without Triton: from a profile to an engine that serves, and what comes to it until it ends.

life.py        from the load of the model to its end: who waits for an engine, and who is told that there will be none
start.py       what is there before an engine: the target, its drafters, what rounds take
build.py       the engine and what is around it, of a profile (service.py)
facts.py       which drafters have a process, and what each says of itself
requests.py    requests on their way to the engine, and questions
line.py        what other models of the server and its launcher send
"""
