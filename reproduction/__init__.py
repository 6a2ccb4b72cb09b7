"""The paper's comparisons, run side by side: exhibits -> arms -> runs -> scores -> tables with the paper's beside.

exhibits.py  what is compared, what the paper reports and claims, and the rule that decides a claim
runs.py      each arm of an exhibit as a run folder, found again by what was trained
scores.py    the records of those runs, over texts and seeds
tables.py    scores -> Markdown, for the terminal and for a file
reproduce.py the command: run what is missing, write the tables
"""
