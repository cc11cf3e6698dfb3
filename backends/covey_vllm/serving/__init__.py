"""vLLM behind Covey's public model, in the process of that: imports nothing of vLLM.

deployment.py   a profile in vLLM's words
process.py      vLLM's process, and the line to it
engine.py       requests on their way there, and what comes back; stands in for `covey.loop.engine`
fields.py       public fields that vLLM has no place for
start.py        from a profile to what serves
"""
