"""Runs one bench, `python -m loadtest.bench NAME --json OUT`: competitors take turns, and ratios are shown in the end.

__main__.py       command line; the bench's module is looked up by name
session.py        one run of a bench: options, time budget, progress, what is written when it ends or is cut short
work.py           what is asked (Ask), what came (Answer, Run), and who can be asked (Competitor)
workload.py       prompts, and orders in which competitors take turns
loads.py          when the requests of an open loop come
in_process.py     competitor: engine and target in this process
over_triton.py    competitor: the real server, unary or streaming
policies.py       policies by name, and what a closed loop found of them
emulated_*.py     pairs that are not there, requests for them, their servers in virtual time
exactness_rows.py rows read in company and compared bit for bit
peers/            the bench with other engines, in environments of their own and asked over pipes
gpu/              a pair in a GPU's memory and engines that share it, the device's clock, and parts of `gpu`
statistics.py     medians, spread, paired ratios, cross-fitted best choice, loops
facts.py          hardware and versions;  report.py: tables, JSON
speedup.py, exactness.py, gpu, emulated.py ...  the benches
"""
