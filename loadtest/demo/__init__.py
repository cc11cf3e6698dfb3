"""Shows what Covey is for, in five minutes, as charts drawn from running servers: `python -m loadtest.demo`.

__main__.py   command line, the servers, and which steps each of them plays
steps.py      one function for each step: what is asked, and what is drawn of it
stage.py      a running server: its callers, looks at what it reports, answers compared with plain decoding
page.py       the charts as one HTML file
"""
