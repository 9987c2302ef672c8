"""The datastores whose logs can be read: one module or folder for each, behind `capture/interface.py`."""
