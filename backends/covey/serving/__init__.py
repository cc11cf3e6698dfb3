"""A public model, independent of Triton: it builds an engine from a profile. and passes it requests and questions.

life.py the states of a model from load to end; callers wait here for an engine. start.py waits for the target and its
drafters, and measures what rounds take. build.py builds the engine and the parts around it (service.py) from a profile
drafter_facts.py which drafters have a process, and the facts that each reports requests.py prepares requests and
submits them to the engine; answers questions link_handler.py handles messages from the server's other models and from
its launcher
"""
