"""The paper's tables and figures, run from a checkout: ``make reproduce ARGS="main"``.

exhibits.py   what each table compares, what the paper reports (paper.py) and claims (claims.py)
nano.yaml     the recipe that every row changes; bases.py: small models of other families
runs.py       the rows of an exhibit as run folders, named by what decides the trained model
measured.py   trains and measures a row; which of its records an exhibit asks for
scores.py     those records by block, row, text and seed
verdicts.py   claims and scores -> findings
tables.py     scores -> Markdown and figures; page.py: the scoreboard and a page for each exhibit
costs.py      time and memory of a step; coverage_check.py: which distances an example trains
archive.py    the published records, one file under docs/reproduction
reproduce.py  the command: run what is missing, write the pages
"""
