"""The unified tensor pool (SuperNeurons, PPoPP 2018, section 3.3): storages that leave the device and return.

Enters: storages that a compiled plan or the tensor cache of eager mode wants elsewhere. Leaves: their bytes, later. The
one idea: both ways of training move storages through the same `Entry`, whose state changes only along `states.ALLOWED`
and is counted in one `Accounts` per set of tiers.
"""
