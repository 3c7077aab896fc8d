"""`fab choose RECIPE`: which machines, how many and under which strategy a run could have, how long and for how much.

assumptions.py  what nobody can know beforehand, with sources; each may be overridden
rows.py         offers and the trainer's forecast to rows, the cheapest run first
stack_file.py   the stack file that a row comes to
table.py        rows for people and for programs
command.py      ask, choose, show, write
"""
