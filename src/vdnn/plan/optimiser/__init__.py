"""The optimiser behind `auto`: what could be done with each storage, and the choice that makes the step fastest.

items.py    every gap of every storage, with all that could be done in it, what each saves and what it costs
compose.py  a choice per gap, written out as a plan that holds
model.py    the choices as an integer program, with the steps that bind
ties.py     repeated blocks share their choices, so that 10^4 layers are not 10^4 questions
search.py   choose, compose, simulate, learn; again
"""
