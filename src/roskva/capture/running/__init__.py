"""What the processes of `roskva capture` run: a publisher beside its datastore, and Roskva's own subscriber (Wormhole 3 and 5).

`publisher.publish` and `notifier.notify` run until they are told to stop, and raise what they cannot go on with; whoever started their
process starts it again, and both go on from the datamarkers. They are processes of their own, so that a service that does not take
versions, or a mapping that costs time, holds up nobody else's flow. What must survive is in the data directory (places.py). Nothing here
reads a settings file, or knows of command lines, signals or supervision: that is cli/capture_run.py.
"""
