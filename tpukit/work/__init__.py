"""What people do on workers: runs, copies, pushes, notebooks.

How bytes and commands travel lives in `remote`; nothing here prints.
"""
