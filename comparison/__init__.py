"""What compare.py is made of: running implementations, checking the lockstep, tables. Imports no framework."""
