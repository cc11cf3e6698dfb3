"""A public model without Triton: from a profile to an engine that serves, and the requests and questions that come to
it.

life.py           the states of a model from its load to its end; callers wait here for an engine, or for its failure
start.py          waits for the target and its drafters, and measures what rounds take
build.py          makes the engine and its surroundings (service.py) of a profile
drafter_facts.py  which drafters have a process, and what each says of itself
requests.py       prepares requests and submits them to the engine; answers questions
link_handler.py   handles messages of other models of the server and of its launcher
"""
