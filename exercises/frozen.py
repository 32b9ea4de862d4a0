"""Imported last by the server from which checks are forked.

All objects that exist by then are left out of garbage collection. Otherwise the first collection in each process would
touch all of torch's objects, and so copy their memory. That would be 0.3 of the 0.4 seconds that a check takes.
"""

import gc

gc.collect()
gc.freeze()
