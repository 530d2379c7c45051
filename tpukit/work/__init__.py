"""What people do on workers: runs, copies, pushes, notebooks.

`remote` carries their bytes and commands. Nothing here prints.
"""
