"""The optimiser behind `auto`: what could be done with each storage, and the choice that makes the step fastest.

candidates.py       every gap of every storage, with all that could be done in it, what each saves and what it costs
demands.py          who has to be back early, because something else is made again from it
ties.py             repeated blocks share their choices, so that 10^4 layers are not 10^4 questions
program_data.py     what the program below believes of memory, and what it is written from
traffic.py          copies under way hold memory: links as queues
integer_program.py  the choices as an integer program, with the moments that bind
greedy_choice.py    the same choices in one pass: fallback and check
compose.py          a choice per gap, written out as a plan that holds
search.py           choose, compose, simulate, learn; again
"""
