"""A public model, independent of Triton: builds an engine from a profile, passes it requests, and answers questions.

life.py           The states of a model from load to end. Callers wait here for an engine.
start.py          Waits for the target and its drafters, and measures what rounds take.
build.py          Builds the engine and the parts around it (service.py) from a profile.
drafter_facts.py  Which drafters have a process, and the facts that each reports.
requests.py       Prepares requests and submits them to the engine. Answers questions.
spans.py          Exports the spans of a request that has ended.
link_handler.py   Handles messages from the server's other models and from its launcher.
"""
