"""Runs one bench, `python -m loadtest.bench NAME --json OUT`: competitors take turns, and ratios are shown in the end.

__main__.py       command line; the bench's module is looked up by name
session.py        one run of a bench: options, time budget, progress, the files written at its end
work.py           requests (Ask), answers (Answer, Run) and competitors (Competitor)
workload.py       prompts, and orders in which competitors take turns
loads.py          when the requests of an open loop come
in_process.py     competitor: engine and target in this process
over_triton.py    competitor: the real server, unary or streaming
policies.py       policies by name, and their results in a closed loop
emulated_*.py     emulated pairs, requests for them, their servers in virtual time
exactness_rows.py rows read in mixed batches and compared bit for bit
peers/            the bench with other engines, each in its own environment and asked over a pipe
gpu/              a pair in a GPU's memory and engines that share it, the device's clock, and parts of `gpu`
statistics.py     medians, spread, paired ratios, cross-fitted best choice, loops
facts.py          hardware and versions;  report.py: tables, JSON
speedup.py, exactness.py, gpu, emulated.py ...  the benches
"""
