"""Decides how deep and wide each row drafts, and with which drafter unless its request names one.

    planner.py        the interface to the engine, and the fallback if a planner fails; round_planner.py implements it
    drafters/         choose each row's drafter
    adaptive.py       the default length policy; the others and their interface are in `covey.bandits`
    rows.py           applies the depth to each row;  offers.py: replaces drafts by those from requests' own texts
    selection.py      chooses the drafts to verify; worth.py and adaserve.py choose single nodes (candidates.py) and
                      consider the requests' objectives (standing.py)
    lessons.py        turns a finished round into a lesson
    build.py          builds all of it from a profile

`expectations.py` combines estimates into tokens and seconds of a round, by depth. The round planner has it updated once
a round.

    tokens    acceptance.py, by drafter and position; `covey.bandits.leaning`: how one request differs from that;
              calibration.py, by drafted node
    seconds   costs.py: passes, drafts and overhead, by regression.py
    extras    switching.py: catch-up before the first draft
              offers.py: rounds with drafts from texts, beside plain ones
    baseline  baseline.py: the time per plain token of one request on an idle server; objectives are multiples of it

Only measured costs outlive the process (`covey.loop.measure`).
"""
