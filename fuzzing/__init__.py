"""Fuzzing: whatever comes from outside is read by a parser that says what is wrong with it, soon, and never falls over.

`make fuzz` gives every parser broken versions of real messages for MINUTES; tests/fuzz does the same for one minute. Without coverage: an
input that is answered in a new way is kept and changed further, which leads far enough into parsers as small as these.
"""
