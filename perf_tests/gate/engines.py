"""The engines of the gate: how rounds, launches and looks were chosen. What one is worth says nothing of another."""

ENGINES = (
    "each side ran on the core that the scheduler chose, base was released first",
    "both sides share their cores, base is released first, which favours head a little",
    "both sides are released together, the first quadruples of short rounds are thrown away",
    "a first look after three launch pairs decides what is far slower, stage 1 measures fewer rounds",
    "a launch pair's time is counted once, so that runs end as late as they may; more suspects, up to 36 pairs",
    "stage 1 measures one quadruple of the longest rounds",
    "a look at the end of stage 1 names what is plainly slower, one after three fresh pairs clears most suspects",
)
"""In the order of time, numbered from 1; a change of what a run measures or decides adds a line."""

PRESENT_ENGINE = len(ENGINES)
"""Samples carry it."""
