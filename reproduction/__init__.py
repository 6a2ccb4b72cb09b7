"""The paper's tables and figures, run from a checkout: ``make reproduce ARGS="main --seeds 3"``.

exhibits.py   what each table compares, what the paper reports (paper.py) and claims (claims.py)
runs.py       the arms of an exhibit as run folders, named by what decides the trained model
measured.py   trains and measures an arm; which of its records an exhibit asks for
scores.py     those records by setting, row, text and seed
verdicts.py   claims and scores -> findings
tables.py, figures.py, page.py   scores and findings -> Markdown and figures
archive.py    the published records, one file under docs/reproduction
reproduce.py  the command: run what is missing, write the pages
"""
