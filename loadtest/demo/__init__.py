"""Shows Covey's uses in five minutes, as charts drawn from running servers: `python -m loadtest.demo`.

__main__.py   command line, the servers, and which steps each of them plays
steps.py      one function for each step: its requests and its charts
stage.py      a running server: its callers, its reports, answers compared with plain decoding
page.py       the charts as one HTML file
"""
